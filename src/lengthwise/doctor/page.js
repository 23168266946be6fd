// The page has no script.
