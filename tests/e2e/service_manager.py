"""A stand-in for systemd as a service manager, on the D-Bus of a node: logind asks it to start `poweroff.target`.

Everything else of a shutdown is real: D-Bus, systemd-logind, its inhibitors, and the kubelet that holds one. This
program writes the name of the target into a file, and the test ends the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jeepney import HeaderFields, MessageType, new_error, new_method_return
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection


def main(started: Path) -> None:
    connection = open_dbus_connection("SYSTEM")
    connection.send_and_get_reply(message_bus.RequestName("org.freedesktop.systemd1"))
    while True:
        call = connection.receive()
        if call.header.message_type is not MessageType.method_call:
            continue
        match call.header.fields.get(HeaderFields.member):
            case "Get":  # the property LoadState of the target
                reply = new_method_return(call, "v", (("s", "loaded"),))
            case "StartUnit":
                started.write_text(call.body[0])
                reply = new_method_return(call, "o", ("/org/freedesktop/systemd1/job/1",))
            case _:
                reply = new_error(call, "org.freedesktop.DBus.Error.UnknownMethod")
        connection.send(reply)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
