from __future__ import annotations

from enum import IntFlag


class HostUpdateResult(IntFlag):
    mixed = 3
