"""`python -m tilewright.cli`, where the console script is not installed."""

from tilewright.cli.main import main

if __name__ == "__main__":
    main()
