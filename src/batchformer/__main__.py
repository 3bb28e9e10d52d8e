"""``python -m batchformer``."""

from batchformer.cli.main import main

if __name__ == "__main__":
    main()
