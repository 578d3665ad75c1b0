"""Runs commands of Phalanx in this process, and notes what they import, call, open and connect to.

python watched.py FILE: `{"allowed": [folders], "commands": {name: [arguments]}}` in; `{name: report}` on standard
output.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

HARMFUL = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.")


class Watch:
    """What happened during a command, and what it had said."""

    def __init__(self):
        self.noted, self.on, self.err = [], False, io.StringIO()

    def hook(self, event, arguments):
        if not self.on:
            return
        if event.startswith(HARMFUL):
            self.noted.append([event, repr(arguments)[:200]])
        elif event == "exec" and is_received(getattr(arguments[0], "co_filename", None)):
            name = Path(arguments[0].co_filename).stem  # importlib.import_module raises no event "import"
            self.noted.append(["import", name, f"The module {name} is imported" in self.err.getvalue()])
        elif event in ("open", "ctypes.dlopen") and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(allowed):
                self.noted.append([event, path])

    def carry_out(self, command):
        for name in [name for name, module in sys.modules.items() if is_received(getattr(module, "__file__", None))]:
            del sys.modules[name]
        out, self.err, self.noted, self.on = io.StringIO(), io.StringIO(), [], True
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(self.err):
            try:
                status = main(command)
            except SystemExit as end:
                status = end.code
            except Exception as error:  # which a user would see as a traceback
                place = traceback.extract_tb(error.__traceback__)[-1]
                status = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        self.on = False
        return {"status": status, "out": out.getvalue(), "err": self.err.getvalue(), "noted": self.noted}


def is_received(path):
    return isinstance(path, str) and path.startswith(received)


job = json.loads(Path(sys.argv[1]).read_text())
received = tuple(map(os.path.realpath, job["allowed"]))
allowed = tuple(map(os.path.realpath, [*job["allowed"], sys.prefix, sys.base_prefix, *filter(None, sys.path)]))
allowed += ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/usr/share/zoneinfo/")  # the last one of pandas
allowed += (str(Path.home() / ".cache"),)  # of matplotlib
sys.path[:] = ["", *sys.path[1:]]  # as `python -m phalanx` has it
from phalanx.cli.main import main  # noqa: E402

with contextlib.suppress(ImportError):
    import urllib3  # noqa: F401  (it binds a socket to see whether there is IPv6)

watch = Watch()
sys.addaudithook(watch.hook)
print(json.dumps({name: watch.carry_out(command) for name, command in job["commands"].items()}))
