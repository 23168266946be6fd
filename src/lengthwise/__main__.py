"""Entry point of ``python -m lengthwise``, for environments without the ``lengthwise`` command."""

from lengthwise.cli.app import main

if __name__ == "__main__":
    main()
