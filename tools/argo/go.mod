// Argo Workflows' controller and the program in its pods, for tests: `tools/go-tools.sh argo` builds the tools at the end.
module allranks/tools/argo

go 1.26.0

require github.com/argoproj/argo-workflows/v3 v3.6.10

// A copy of this version, created by tools/go-tools.sh, with the missing file signal_linux.go added.
replace github.com/argoproj/argo-workflows/v3 => ../argo-workflows

tool (
	github.com/argoproj/argo-workflows/v3/cmd/argoexec
	github.com/argoproj/argo-workflows/v3/cmd/workflow-controller
)
