"""`python -m capsearch` is the command `capsearch`."""

from capsearch.ui.cli.main import run

if __name__ == "__main__":
    run()
