"use strict";
// Sorts and filters the page's data tables and saves its data. Without it they are plain tables.
(() => {
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

  // What a reader sees first in a cell; a dash is no number and comes last.
  const textOf = cell => (cell.firstChild ? cell.firstChild.textContent.trim() : "");
  const numberOf = cell => {
    const found = /[-+]?\d[\d.]*/.exec(textOf(cell).replace(/,/g, ""));
    return found ? parseFloat(found[0]) : NaN;
  };

  const keyOf = (row, column, numeric) => ({
    row,
    last: row.classList.contains("void"),
    value: numeric ? numberOf(row.cells[column]) : textOf(row.cells[column]),
  });
  const collator = new Intl.Collator("en", { numeric: true });

  const compareBy = (numeric, direction) => (a, b) => {
    if (a.last !== b.last) return a.last - b.last;
    if (!numeric) return direction * collator.compare(a.value, b.value);
    const missing = Number.isNaN(a.value) - Number.isNaN(b.value);
    return missing || (Number.isNaN(a.value) ? 0 : direction * (a.value - b.value));
  };

  const sort = (table, head) => {
    const numeric = head.classList.contains("num");
    const before = head.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const second = numeric ? "ascending" : "descending";
    const order = before === first ? second : first;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const body = table.tBodies[0];
    const keys = [...body.rows].map(row => keyOf(row, head.cellIndex, numeric));
    keys.sort(compareBy(numeric, order === "ascending" ? 1 : -1));
    body.append(...keys.map(key => key.row));
  };

  const sortable = table => {
    for (const head of table.tHead.rows[0].cells) {
      const button = make("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head));
    }
  };

  const filterable = table => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 8) return;
    const label = make("label", { className: "filter", textContent: "Only rows with " });
    const input = make("input", { type: "search", spellcheck: false });
    const shown = make("output", { className: "small" });
    label.append(input);
    const line = make("p", { className: "filters" });
    line.append(label, shown);
    table.closest(".scroll").before(line);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
        if (!row.hidden) left += 1;
      }
      shown.textContent = words.length ? `${left} of ${rows.length} rows` : "";
    });
  };

  // A folded table's row as the object that it was; see embed.py.
  const unfold = (columns, row) => {
    const whole = {};
    columns.forEach((column, i) => {
      const [name, key] = column.split(".");
      if (key === undefined) whole[name] = row[i];
      else (whole[name] ??= {})[key] = row[i];
    });
    for (const [name, value] of Object.entries(whole)) {
      const folded = columns.some(column => column.startsWith(`${name}.`));
      if (folded && Object.values(value).every(inner => inner === null)) whole[name] = null;
    }
    return whole;
  };

  const save = () => {
    const data = JSON.parse(document.getElementById("data").textContent);
    for (const [name, value] of Object.entries(data)) {
      if (!["cells", "screened", "predictions"].includes(name)) continue;
      data[name] = value.rows.map(row => unfold(value.columns, row));
    }
    const text = JSON.stringify(data);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href: url, download: button.dataset.file }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  for (const table of document.querySelectorAll("table.data")) {
    sortable(table);
    filterable(table);
  }
  const button = document.getElementById("save");
  button.hidden = false;
  button.addEventListener("click", save);
})();
