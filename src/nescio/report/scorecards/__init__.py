"""Reports of scorecards and comparisons: questions, tables, figures, prose, and stories of all of them."""
