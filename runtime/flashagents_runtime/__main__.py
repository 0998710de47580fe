"""`python -m flashagents_runtime` is the `flashagents` command."""

from .cli import main

if __name__ == "__main__":
    main()
