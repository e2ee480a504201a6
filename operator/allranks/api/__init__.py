"""The resource `DistributedTraining`: its types, defaults and rules, and the CRD generated from them."""
