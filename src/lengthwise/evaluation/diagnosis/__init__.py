"""Why a trained run fails at a length: what goes wrong first, and which change makes it right again."""
