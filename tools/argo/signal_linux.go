// This file is missing in workflow/executor/os-specific of the published module. The emissary, the first process of a
// workflow's container, uses it to start and signal the user's command.
package os_specific

import (
	"os"
	"syscall"

	"github.com/argoproj/argo-workflows/v3/util/errors"
)

var Term = syscall.SIGTERM

// The Go runtime sends SIGURG to itself.
func CanIgnoreSignal(s os.Signal) bool {
	return s == syscall.SIGURG || s == syscall.SIGCHLD
}

func Setpgid(attributes *syscall.SysProcAttr) {
	attributes.Setpgid = true
}

// The command leads its own process group, see Setpgid: the signal also goes to its children.
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
