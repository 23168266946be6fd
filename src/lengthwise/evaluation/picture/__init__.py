"""Pictures of one example: its tokens, position IDs and links, in a terminal and as SVG."""
