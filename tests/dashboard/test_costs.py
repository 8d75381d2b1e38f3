"""The dialog that shows what was spent, in both languages (H10)."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.costs.support import priced_server
from tests.dashboard.support import Pages, violations


@pytest.mark.parametrize(
    ("locale", "menu", "item", "sessions", "none"),
    [
        ("en-GB", "Menu", "Costs", "Session", "no price"),
        ("zh-CN", "菜单", "费用统计", "会话", "无价格"),
    ],
)
def test_costs_are_shown_by_day_session_model_and_principal(
    pages: Pages, tmp_path: Path, locale: str, menu: str, item: str, sessions: str, none: str
) -> None:
    with priced_server(tmp_path) as server:
        cost = server.say("first", "hello").json()["usage"]["cost"]
        server.client.post("/v1/sessions", json={"id": "free", "settings": {"model": "free"}}).raise_for_status()
        server.say("free", "hello").raise_for_status()
        page = pages.open(server.process.url, locale=locale)
        page.get_by_role("button", name=menu, exact=True).click()
        page.get_by_role("menuitem", name=item).click()
        dialog = page.get_by_role("dialog", name=item)
        rows = dialog.locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text(f"{cost:.2f}")
        for by, names in (("session", ("first", "free")), ("model", ("paid", "free")), ("principal", ("local",))):
            dialog.get_by_role("combobox").select_option(by)
            expect(rows.get_by_role("rowheader")).to_have_text(list(names))
        dialog.get_by_role("combobox").select_option(label=sessions)
        expect(rows.nth(1)).to_contain_text(none)
        assert violations(page) == []
