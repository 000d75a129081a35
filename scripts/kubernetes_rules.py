"""Write deploy/kubernetes/rules.yaml, the rules of deploy/prometheus for the Prometheus operator.

python scripts/kubernetes_rules.py
"""

from __future__ import annotations

from pathlib import Path

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
_HEAD = """\
# Written by scripts/kubernetes_rules.py from deploy/prometheus/rules.yml; edit that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: baton
spec:
"""


def prometheus_rule(rules: str) -> str:
    """The manifest with the groups of a file of rules."""
    lines = rules[rules.index("groups:\n") :].splitlines()
    return _HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


def main() -> None:
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    (DEPLOY / "kubernetes" / "rules.yaml").write_text(prometheus_rule(rules))


if __name__ == "__main__":
    main()
