"""`python -m viewspan` is the `viewspan` command."""

from viewspan.cli import main

if __name__ == "__main__":
    main()
