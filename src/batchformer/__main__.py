"""``python -m batchformer``."""

from batchformer.cli import main

if __name__ == "__main__":
    main()
