"""Run by `proxy.compiled.build` in a copy of the source: mypyc on the files named, in place.

    python mypyc_script.py JOBS FILE...

setuptools compiles the files of one extension one after the other; here they are compiled beforehand, side by side.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_C_FLAGS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
"""The modules are one library: what they call in each other is called straight, and not by way of a table."""

_MYPY = (
    "--config-file=",
    "--cache-dir=build/mypy",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)


def main(jobs: int, files: list[str]) -> None:
    """Compile `files`, paths below the working directory. Exits with a message when mypyc finds fault with them."""

    class Parallel(build_ext):  # type: ignore[misc] # setuptools has no types
        def build_extension(self, ext: Extension) -> None:
            options = {
                "output_dir": self.build_temp,
                "include_dirs": ext.include_dirs,
                "extra_postargs": ext.extra_compile_args,
                "depends": ext.depends,
            }

            def compiled(source: str) -> list[str]:
                return list(self.compiler.compile([source], **options))

            with ThreadPoolExecutor(jobs) as pool:
                objects = [made for each in pool.map(compiled, ext.sources) for made in each]
            ext.extra_objects, ext.sources = [*objects, *(ext.extra_objects or [])], []
            super().build_extension(ext)

    extensions = mypycify([*_MYPY, *files], opt_level="2", debug_level="0", multi_file=True)
    if sys.platform != "win32":
        for extension in extensions:
            extension.extra_compile_args += _C_FLAGS
    setup(
        name="trimtab-compiled",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", "--inplace"],
        cmdclass={"build_ext": Parallel},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
