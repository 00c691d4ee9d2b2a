"""Write the dashboards' JSON into role grafana: python -m tests.dashboards."""

from tests.dashboards.pages import PAGES
from tests.dashboards.parts import text
from tests.labs import REPOSITORY

FOLDER = REPOSITORY / "roles/grafana/files"

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for page in PAGES:
        (FOLDER / f"{page.name}.json").write_text(text(page))
