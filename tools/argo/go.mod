// Argo Workflows' controller and the program of its pods, for tests: `tools/go-tools.sh argo` builds the tools named at the end.
module allranks/tools/argo

go 1.26.0

require github.com/argoproj/argo-workflows/v3 v3.6.10

// A copy of that very version, which tools/go-tools.sh makes beside this folder's: with signal_linux.go, which it lacks.
replace github.com/argoproj/argo-workflows/v3 => ../argo-workflows

tool (
	github.com/argoproj/argo-workflows/v3/cmd/argoexec
	github.com/argoproj/argo-workflows/v3/cmd/workflow-controller
)
