"""Default values that functions share with the command line, which shows them in its help without importing torch."""

# Ways to find a coupling: from the examples, from the answers of a model, or the second if the first is impossible.
DEPENDENCE, MODEL, AUTO = "dependence", "model", "auto"
COUPLING_METHODS = (AUTO, DEPENDENCE, MODEL)
# Largest number of tokens that an answer may depend on, and number of examples per length that a task samples.
MAX_COUPLED_TOKENS, SAMPLES_PER_LENGTH = 6, 500
# Time limit of the search for a coupling, without a model, in minutes.
SEARCH_MINUTES = 2.0
# Number of examples per length of a diagnosis.
DIAGNOSIS_EXAMPLES = 256
# Number of shots, which are solved examples before each question to a language model.
DEFAULT_NUM_SHOTS = 4
# First seed of a reproduction; settings were tuned with smaller seeds.
FIRST_SEED = 9000
# Number of far tokens of an influence study, and gain from them, in nats, that a target must exceed.
FAR_TOKENS, CLEAR_GAP = 1024, 0.5
# Format of a data set as a source of texts.
DATASET_PREFIX = "dataset:"
SOURCE_FORMAT = f"{DATASET_PREFIX}NAME:SPLIT:CONFIG:COLUMN"
