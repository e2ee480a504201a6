// Helm, for the tests of the chart: `tools/helm.sh` builds it.
module allranks/tools/helm

go 1.26.0

require helm.sh/helm/v4 v4.3.1

tool helm.sh/helm/v4/cmd/helm
