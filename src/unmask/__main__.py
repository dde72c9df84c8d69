"""`python -m unmask`."""

from unmask.cli.main import run

if __name__ == "__main__":
    run()
