// Helm 3, for tests of the chart: `tools/go-tools.sh helm3`. It is a module of its own, because the versions of its
// dependencies differ from those of Helm 4.
module allranks/tools/helm3

go 1.26.0

require helm.sh/helm/v3 v3.22.0

tool helm.sh/helm/v3/cmd/helm
