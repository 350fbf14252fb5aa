"""Check a bill of materials: check_bill.py FILE VERSION. It names this version, torch, and no path of this machine."""

import json
import sys
from pathlib import Path

bill = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
root = bill["metadata"]["component"]
components = {component["name"]: component for component in bill["components"]}
assert (root["name"], root["version"]) == ("polyloom", sys.argv[2]), root
assert {"torch", "transformers", "numpy"} <= components.keys()
assert all(component.get("version") for component in components.values())
# A wheel that was installed from a file is named by its place; what is published has none.
for component in [*bill["components"], root]:
    kept = [link for link in component.get("externalReferences", []) if not link["url"].startswith("file:")]
    component["externalReferences"] = kept
text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
assert "file:" not in text
Path(sys.argv[1]).write_text(text, encoding="utf-8")
print(f"{len(components)} components")
