"""The command line: one command per public function."""
