"""Builds the wheel of capsearch-unidic; `pip install ./encoders/unidic` runs it."""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))  # pip does not


class BuildWithDictionary(build_py):
    """Adds the reduced dictionary to the package's modules."""

    def run(self) -> None:
        """An editable installation has no dictionary: install the package itself."""
        super().run()
        import unidic_lite
        from reduce import reduce

        target = Path(self.build_lib) / "capsearch_unidic" / "dicdir"
        shutil.rmtree(target, ignore_errors=True)
        reduce(Path(unidic_lite.DICDIR), target)


setup(cmdclass={"build_py": BuildWithDictionary})
