"""`python -m proxy.cli`, for environments whose scripts are not on the path."""

from proxy.cli import main

main(prog_name="trimtab")
