from allranks.errors import AllranksError as AllranksError
from allranks.errors import CannotPickle as CannotPickle
from allranks.errors import CannotRun as CannotRun
from allranks.errors import InvalidManifest as InvalidManifest
from allranks.errors import RankFailed as RankFailed
from allranks.errors import ResultError as ResultError
from allranks.sdk.run import run as run
from allranks.version import __version__ as __version__
