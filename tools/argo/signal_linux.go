// The published module has no file of this name in workflow/executor/os-specific. What the emissary, the first process of
// a workflow's container, does to the user's command.
package os_specific

import (
	"os"
	"syscall"

	"github.com/argoproj/argo-workflows/v3/util/errors"
)

var Term = syscall.SIGTERM

// The runtime of Go sends itself SIGURG.
func CanIgnoreSignal(s os.Signal) bool {
	return s == syscall.SIGURG || s == syscall.SIGCHLD
}

func Setpgid(attributes *syscall.SysProcAttr) {
	attributes.Setpgid = true
}

// The command leads a group of its own, see Setpgid: its children are meant as well.
func Kill(pid int, s syscall.Signal) error {
	return syscall.Kill(-pid, s)
}

func Wait(process *os.Process) error {
	state, err := process.Wait()
	if err != nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return errors.NewExitErr(128 + int(status.Signal()))
	}
	return errors.NewExitErr(state.ExitCode())
}
