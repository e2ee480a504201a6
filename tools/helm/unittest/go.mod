// The runner of the chart's unit tests, apart from Helm: it needs a Helm of its own choice.
module allranks/tools/helm/unittest

go 1.26.0

require github.com/helm-unittest/helm-unittest v1.1.2

tool github.com/helm-unittest/helm-unittest/cmd/helm-unittest

// As its own go.mod says, which counts only where it is the main module.
replace github.com/vmware-labs/yaml-jsonpath => github.com/helm-unittest/yaml-jsonpath v0.4.0
