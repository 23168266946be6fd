"""``python -m lengthwise``: the command line, where its own command is not on the path."""

from lengthwise.cli.app import main

if __name__ == "__main__":
    main()
