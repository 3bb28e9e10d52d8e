"""What runs say: read from their folders, compared arm against arm, shown as a table or a page."""
