"""Our own code for executors on other machines: one archive that Spark hands to their Python processes.

What reads Kafka runs there, and must be of the version that the driver has. The archive comes before whatever is
installed there; what our code needs from others (pyarrow, confluent-kafka, …) has to be installed.
"""

from __future__ import annotations

import importlib
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGES = ("schemas", "events", "workers")
ARCHIVE = "detent.zip"


def ship(context: SparkContext, archive: Path) -> None:
    """Executors import our packages from now on."""
    before = list(sys.path)
    context.addPyFile(str(archived(archive)))
    sys.path[:] = before  # here they are imported from where they are


def archived(archive: Path) -> Path:
    """Compiled, as each new Python process of Spark imports it; Spark asks for the same minor version anyhow."""
    unfinished = archive.with_suffix(".part")
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as into:
        compiled = Path(scratch) / "module.pyc"
        for package in PACKAGES:
            folder = Path(str(importlib.import_module(package).__file__)).parent
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder.parent)
                if path.suffix == ".py":
                    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
                    py_compile.compile(str(path), str(compiled), str(name), doraise=True, invalidation_mode=unchecked)
                    into.write(compiled, name.with_suffix(".pyc"))
                elif path.suffix == ".avsc":
                    into.write(path, name)
    return unfinished.replace(archive)
