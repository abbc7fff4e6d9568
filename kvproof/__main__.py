"""Lets `python -m kvproof` be the command `kvproof`."""

from kvproof.cli.application import application


def main() -> None:
    """Run the command line."""
    application(prog_name="kvproof")


if __name__ == "__main__":
    main()
