// The page of a report; `common.js` is before it.
const PAGE = 50; // rows of the table that are there at a time
const TOKENS = 900; // tokens of a panel that are there at a time, over all of its strips
const STRIPS = 12; // strips, and rows of a table, of a panel that are there at a time
const SHORT = 24; // characters of a cell that needs no shortening
const MISSING = -32768, LARGEST = 32767;
let items = null; // the header of the block, with its arrays in `a`
let strips = null;
const shows = {}; // what tokens can be coloured by; at `top` a colour is darkest
const place = (id) => document.getElementById(id);

// what the address keeps after its `#`

const fresh = () => ({ q: "", sort: null, down: false, page: 0, item: null, show: strips ? strips.shows[0].key : "", only: "", is: {}, range: {}, theme: "" });
let state = fresh();

function readHash() {
	const found = new URLSearchParams(location.hash.slice(1));
	state = fresh();
	for (const [key, value] of found) {
		const number = Number.parseInt(value, 10);
		if (key === "q" || key === "only") state[key] = value;
		else if (key === "theme" && /^(dark|light)$/.test(value)) state.theme = value;
		else if (key === "show" && Object.hasOwn(shows, value)) state.show = value;
		else if (key === "sort" && number >= 0) [state.sort, state.down] = [number, value.endsWith("d")];
		else if (key === "page" && number > 0) state.page = number - 1;
		else if (key === "item" && number > 0) state.item = number - 1;
		else if (/^is\d+$/.test(key)) state.is[key.slice(2)] = value;
		else if (/^in\d+$/.test(key)) state.range[key.slice(2)] = value.split("~").slice(0, 2);
	}
}

function writeHash() {
	const out = new URLSearchParams();
	if (state.q) out.set("q", state.q);
	if (state.only) out.set("only", state.only);
	for (const [k, value] of Object.entries(state.is)) if (value) out.set("is" + k, value);
	for (const [k, ends] of Object.entries(state.range)) if (ends[0] || ends[1]) out.set("in" + k, ends.join("~"));
	if (state.sort !== null) out.set("sort", state.sort + (state.down ? "d" : "u"));
	if (state.page) out.set("page", state.page + 1);
	if (state.item !== null) out.set("item", state.item + 1);
	if (strips && state.show !== strips.shows[0].key) out.set("show", state.show);
	if (state.theme) out.set("theme", state.theme);
	const text = out.toString();
	if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? "#" + text : "#");
}

// the data


async function load() {
	const raw = atob(place("data").textContent);
	const bytes = new Uint8Array(raw.length);
	for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
	const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
	const block = await new Response(plain).arrayBuffer();
	const size = new DataView(block).getUint32(0, true);
	items = JSON.parse(new TextDecoder().decode(new Uint8Array(block, 4, size)));
	items.a = {};
	for (const [name, [kind, at, n]] of Object.entries(items.arrays)) items.a[name] = array(block, kind, 4 + size + at, n);
	for (const column of items.columns) {
		column.right = column.kind === "number";
		if (column.kind === "number") {
			const texts = items.n ? column.values.split("\n") : [];
			column.text = (k) => texts[k];
			column.numbers = Float64Array.from(texts, number);
		} else if (column.array) {
			const where = items.a[column.array];
			column.text = (k) => column.values[where[k]];
		} else column.text = (k) => column.values[k];
	}
	for (const column of items.columns) column.long = column.kind === "text" && column.values.some((text) => text.length > SHORT);
	strips = items.strips;
	if (strips) {
		if (items.textColumn) items.columns.splice(1, 0, { title: items.textColumn, kind: "text", text: stripText, long: true });
		const { first, length } = items.a;
		strips.first = starts(first);
		strips.start = starts(length);
		for (const one of strips.shows) shows[one.key] = one;
	}
}

// The text of an item that has one strip.
function stripText(k) {
	const s = strips.first[k];
	return s < strips.first[k + 1] ? textOf(s) : "";
}

function textOf(s) {
	let text = "";
	for (let t = strips.start[s]; t < strips.start[s + 1]; t++) text += strips.texts[items.a.token[t]];
	return text;
}

function array(block, kind, at, n) {
	if (kind === "u1") return new Uint8Array(block, at, n);
	if (kind === "u2") return new Uint16Array(block, at, n);
	if (kind === "u4") return new Uint32Array(block, at, n);
	const low = new Uint8Array(block, at, n), high = new Uint8Array(block, at + n, n), out = new Int16Array(n);
	for (let k = 0; k < n; k++) out[k] = low[k] | (high[k] << 8);
	return out;
}

function starts(lengths) {
	const out = new Uint32Array(lengths.length + 1);
	for (let k = 0; k < lengths.length; k++) out[k + 1] = out[k] + lengths[k];
	return out;
}

function three(text) {
	return /^-?\d+\.\d+$/.test(text) && +text ? (Math.abs(text) < 999.5 ? (+text).toPrecision(3) : (+text).toFixed()) : text;
}

function number(text) {
	if (/^-?inf/.test(text)) return text[0] === "-" ? -Infinity : Infinity;
	return Number.parseFloat(text);
}

// which items, in which order

let view = [];
let searched = null;

function searchText(k) {
	const out = items.columns.filter((one) => !one.right).map((one) => one.text(k));
	for (const field of items.fields) out.push(field.values[k]);
	for (const table of items.tables) for (const row of table.items[k]) out.push(...row[0]);
	if (items.errors[k]) out.push(items.errors[k]);
	if (strips) {
		for (let s = strips.first[k]; s < strips.first[k + 1]; s++) out.push(textOf(s), strips.contexts[items.a.context[s]]);
	}
	return out.join("\n").toLowerCase();
}

function choose() {
	const q = state.q.toLowerCase();
	if (q && !searched) searched = Array.from({ length: items.n }, (_, k) => searchText(k));
	const picked = Object.entries(state.is).filter(([k, value]) => value && items.columns[k]);
	const ranges = Object.entries(state.range)
		.filter(([k]) => items.columns[k] && items.columns[k].numbers)
		.map(([k, [low, high]]) => [items.columns[k].numbers, low ? Number(low) : -Infinity, high ? Number(high) : Infinity]);
	view = [];
	for (let k = 0; k < items.n; k++) {
		if (q && !searched[k].includes(q)) continue;
		if (state.only === "failed" && items.errors[k] === undefined) continue;
		if (state.only === "noise" && items.noise[k] !== "y") continue;
		if (picked.some(([c, value]) => items.columns[c].text(k) !== value)) continue;
		if (ranges.some(([numbers, low, high]) => !(numbers[k] >= low && numbers[k] <= high))) continue;
		view.push(k);
	}
	const column = items.columns[state.sort];
	if (column) {
		const turn = state.down ? -1 : 1;
		const { numbers, text } = column;
		const missing = (k) => (numbers ? Number.isNaN(numbers[k]) : text(k) === "-");
		const compare = numbers ? (a, b) => Math.sign(numbers[a] - numbers[b]) || 0 : (a, b) => words.compare(text(a), text(b));
		view.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : turn * compare(a, b)) || a - b);
	}
}

// the controls above the table

const words = new Intl.Collator("en", { numeric: true });

const labelled = (text, control) => make("label", null, make("span", null, text), control);

function chooser(id, label, choices, onchange) {
	return labelled(label, make("select", { id, onchange }, ...choices.map(([value, text]) => make("option", { value }, text))));
}

function controls() {
	const parts = [labelled("Search texts", make("input", { type: "search", id: "q", oninput: (e) => change({ q: e.target.value }) }))];
	items.columns.forEach(({ kind, title, values }, k) => {
		if ((kind !== "category" && kind !== "flag") || values.length < 2 || values.length > 200) return;
		const choices = values.slice().sort(words.compare).map((v) => [v, v]);
		parts.push(chooser("is" + k, title, [["", "all"], ...choices], (e) => change({ is: { ...state.is, [k]: e.target.value } })));
	});
	const only = [["", "all"]];
	if (Object.keys(items.errors).length) only.push(["failed", "failed"]);
	if (items.noise.includes("y")) only.push(["noise", "within noise ≈"]);
	if (only.length > 1) parts.push(chooser("only", "Which " + items.what, only, (e) => change({ only: e.target.value })));
	const numbers = items.columns.map((one, k) => [String(k), one.title, one.numbers]).filter((one) => one[2]);
	if (numbers.length) {
		const end = (which, id, name) => labelled(name, make("input", { type: "number", step: "any", id, oninput: (e) => {
			const column = place("range").value, ends = [...(state.range[column] || ["", ""])];
			ends[which] = e.target.value;
			change({ range: { ...state.range, [column]: ends } });
		} }));
		parts.push(make("span", { class: "range" }, chooser("range", "Number", numbers, showControls), end(0, "low", "from"), end(1, "high", "to")));
	}
	parts.push(
		make("span", { id: "count", role: "status" }),
		button("Show all", () => { const { theme, show } = state; state = { ...fresh(), theme, show }; update(); }, { id: "reset" }),
		button("CSV", save, { id: "csv" }),
	);
	return make("div", { class: "controls", role: "search" }, ...parts);
}

function showControls() {
	const put = (id, value) => { const one = place(id); if (one && one.value !== value) one.value = value; };
	put("q", state.q);
	put("only", state.only);
	items.columns.forEach((_, k) => put("is" + k, state.is[k] || ""));
	const range = place("range");
	if (range) {
		const [low, high] = state.range[range.value] || ["", ""];
		put("low", low || "");
		put("high", high || "");
	}
}

function change(some) {
	Object.assign(state, some, { page: 0 });
	update();
}

// the table

function table() {
	const heads = items.columns.map((column, k) =>
		make("th", { scope: "col", class: column.right ? "number" : null, title: column.hint || null },
			button(column.title, () => sort(k))));
	return make("div", { class: "wide" }, make("table", { id: "table", class: "many", style: "--long:" + items.columns.filter((one) => one.long).length },
		make("thead", null, make("tr", null, ...heads)), make("tbody", null)));
}

function sort(k) {
	// A number's column begins with its largest values; the third click is the report's own order.
	const down = items.columns[k].right;
	if (state.sort !== k) Object.assign(state, { sort: k, down });
	else if (state.down === down) state.down = !down;
	else Object.assign(state, { sort: null, down: false });
	change({});
}

const look = ({ right, kind, long }) => (right ? "number" : kind + (long ? " long" : ""));

function row(k) {
	const open = state.item === k;
	const cells = items.columns.map((column, c) => {
		const text = column.text(k);
		if (c === 0) {
			const name = button(text.slice(0, 300) || "(no text)", null, { class: "open", "data-item": k, "aria-expanded": String(open), dir: "auto" });
			return make("th", { scope: "row", class: look(column) }, name);
		}
		const shown = column.kind === "token" ? glyphs(text) : column.right ? three(text) : text.slice(0, 300);
		return make("td", { class: look(column), dir: column.right ? null : "auto", "data-label": column.title }, shown);
	});
	return make("tr", { class: items.errors[k] === undefined ? null : "failed" }, ...cells);
}

function showTable() {
	const last = Math.max(0, Math.ceil(view.length / PAGE) - 1);
	state.page = Math.min(state.page, last);
	const some = view.slice(state.page * PAGE, (state.page + 1) * PAGE);
	const rows = [];
	for (const k of some) {
		rows.push(row(k));
		if (k === state.item) rows.push(make("tr", { class: "detail" }, make("td", { colspan: items.columns.length }, panel(k))));
	}
	if (!some.length) rows.push(make("tr", null, make("td", { colspan: items.columns.length }, "No item is like that.")));
	place("table").tBodies[0].replaceChildren(...rows);
	[...place("table").tHead.rows[0].cells].forEach((head, k) => {
		head.setAttribute("aria-sort", state.sort !== k ? "none" : state.down ? "descending" : "ascending");
	});
	const all = many(items.n);
	place("count").textContent = view.length === items.n ? all + " " + (items.n === 1 ? items.one : items.what) : many(view.length) + " of " + all;
	const turn = (name, to, can) => button(name, () => { state.page = to; update(); }, { disabled: !can });
	const from = state.page * PAGE;
	place("pages").replaceChildren(
		turn("‹ Previous", state.page - 1, state.page > 0),
		make("span", null, view.length ? many(from + 1) + "–" + many(from + some.length) + " of " + many(view.length) : "0"),
		turn("Next ›", state.page + 1, state.page < last));
}

// one item

function openItem(k) {
	state.item = k;
	if (k !== null && !view.slice(state.page * PAGE, (state.page + 1) * PAGE).includes(k)) state.page = Math.max(0, Math.floor(view.indexOf(k) / PAGE));
	update();
}

function focusItem(k) {
	const one = document.querySelector('.open[data-item="' + k + '"]');
	if (one) one.focus();
}

function panel(k) {
	const at = view.indexOf(k);
	const step = (text, name, to) => button(text, () => { openItem(view[to]); focusItem(view[to]); }, { disabled: view[to] === undefined, "aria-label": name });
	const close = () => { openItem(null); focusItem(k); };
	const first = items.columns[0].text(k);
	const parts = [make("div", { class: "bar-above" }, make("h3", { dir: "auto" }, first.length > 200 ? first.slice(0, 200) + "…" : first || "(no text)"),
		make("span", { class: "steps" }, step("‹", "Item before", at - 1), step("›", "Next item", at + 1), button("×", close, { "aria-label": "Close" })))];
	if (items.errors[k] !== undefined) parts.push(make("p", { class: "error" }, "Failed: " + items.errors[k]));
	const fields = items.fields.map((field) => [field.title, field.values[k]]);
	if (first.length > 200) fields.unshift([items.columns[0].title, first]);
	for (const [title, text] of fields) if (text) parts.push(make("div", { class: "field" }, make("b", null, title), make("div", { class: "text", dir: "auto" }, text)));
	for (const one of items.tables) if (one.items[k].length) parts.push(rowsOf(one, one.items[k]));
	if (strips && strips.first[k] < strips.first[k + 1]) parts.push(stripsOf(k));
	return make("div", { id: "panel", role: "region", "aria-label": "Item " + (at + 1), onkeydown: (e) => { if (e.key === "Escape") close(); } }, ...parts);
}

function rowsOf(one, rows) {
	const body = make("tbody", null);
	const draw = (from) => {
		body.replaceChildren(...rows.slice(from, from + 2 * STRIPS).map(([cells, share, marked]) => make("tr", { class: marked ? "marked" : null },
			...cells.map((cell, k) => make(k ? "td" : "th", { scope: k ? null : "row", class: k ? "number" : null, dir: k ? null : "auto", "data-label": k ? one.header[k] : null }, k ? three(cell) : cell, !k && marked ? make("b", { class: "mark" }, " ✓ " + one.marked) : "")),
			make("td", { class: "share" }, share === null ? "" : make("span", { style: "--a:" + share.toFixed(4) })))));
	};
	draw(0);
	const heads = one.header.map((head, k) => make("th", { scope: "col", class: k ? "number" : null }, head));
	return make("div", { class: "wide" }, make("table", { class: "rows" + (one.header.length > 2 ? " many" : "") }, make("caption", null, one.title),
		make("thead", null, make("tr", null, ...heads, make("td", null))), body), turner(rows.length, 2 * STRIPS, draw));
}

// Buttons that go through more parts than are there at a time; nothing where all are.
function turner(n, together, draw) {
	if (n <= together) return "";
	let from = 0;
	const range = make("span", null, "1–" + many(together) + " of " + many(n));
	const go = (name, by, text) => button(text, () => {
		from = Math.min(Math.max(0, from + by), Math.floor((n - 1) / together) * together);
		draw(from);
		range.textContent = many(from + 1) + "–" + many(Math.min(n, from + together)) + " of " + many(n);
	}, { "aria-label": name });
	return make("p", { class: "turner" }, go("Earlier", -together, "‹"), range, go("Later", together, "›"));
}

// strips of tokens

const bit = (bits, t) => (bits[t >> 3] >> (t & 7)) & 1;
const unsure = (t) => items.a.unsure && bit(items.a.unsure, t);
const greedy = (t) => bit(items.a.greedy, t);
const continues = (t) => items.a.continues && bit(items.a.continues, t);

function glyphs(text) {
	return (text[0] === " " ? "·" + text.slice(1) : text).replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}

// The number of n tokens that share characters: the sum of theirs, of ranks the largest.
function total({ key, log }, t, n) {
	const values = Array.from(items.a[key].subarray(t, t + n)).filter((x) => x !== MISSING);
	if (!values.length) return MISSING;
	return log ? Math.max(...values) : values.reduce((a, b) => a + b);
}

function amount(t, n) {
	const { top, per, sign, log } = shows[state.show], raw = total(shows[state.show], t, n);
	if (raw === MISSING || !raw) return 0;
	const size = (raw / per) * (sign || Math.sign(raw));
	return Math.min(1, Math.max(0, log ? Math.log10(size) / Math.log10(top) : size / top));
}

function factText({ per, log }, x) {
	if (x === MISSING || (log && !x)) return "none";
	if (log) return many(x);
	if (per !== 1000) return (x / per).toPrecision(3);
	return (Math.abs(x) === LARGEST ? (x < 0 ? "≤ " : "≥ ") : "") + (x / per).toFixed(3);
}

function stripsOf(k) {
	const readout = make("dl", { class: "readout", role: "status" }, make("dt", null, "Point at a token, or use the arrow keys."));
	const from = strips.first[k], n = strips.first[k + 1] - from, each = Math.floor(TOKENS / Math.min(n, STRIPS));
	const places = make("div", null);
	const draw = (at) => places.replaceChildren(...Array.from({ length: Math.min(STRIPS, n - at) }, (_, j) => oneStrip(from + at + j, each, readout)));
	draw(0);
	const buttons = strips.shows.map(({ key, name }) =>
		button(name, (e) => {
			state.show = key;
			for (const other of e.target.parentNode.children) other.setAttribute("aria-pressed", String(other === e.target));
			for (const span of places.querySelectorAll(".t")) paint(span);
			legend.replaceChildren(...legendParts());
			writeHash();
		}, { "aria-pressed": String(key === state.show) }));
	const legend = make("div", { class: "legend" }, ...legendParts());
	return make("div", null, make("div", { class: "switch" }, make("span", { role: "group", "aria-label": "Colour of tokens" }, ...buttons), legend), readout, places, turner(n, STRIPS, draw));
}

function legendParts() {
	const { top, unit, log, sign } = shows[state.show];
	const at = [0, 1, 2, 3, 4].map((k) => (log ? many(10 ** k) : top < 1 ? (k * top / 4).toPrecision(2) : (k * top / 4).toFixed(top % 4 ? 1 : 0)));
	const boxes = at.map((text, k) => make("span", { class: "t", style: "--a:" + k / 4 }, (k === 4 ? "≥ " : "") + text));
	const note = unit + (sign ? "" : "underlined: below 0 · ") + (shows.logprob ? "≠ is not the most probable token" : "");
	return [...boxes, make("span", { class: "note" }, note.replace(/ · $/, ""))];
}

function paint(span) {
	const t = Number(span.dataset.t), n = Number(span.dataset.n), raw = total(shows[state.show], t, n);
	span.style.setProperty("--a", amount(t, n).toFixed(3));
	span.classList.toggle("less", !shows[state.show].sign && raw < 0 && raw !== MISSING);
}

// A token, or several that share characters, as one box.
function tokenSpan(t, end) {
	let n = 1;
	while (t + n < end && continues(t + n)) n++;
	const text = strips.texts[items.a.token[t]], each = Array.from({ length: n }, (_, k) => t + k);
	const hasNone = each.every((k) => items.a.logprob[k] === MISSING);
	const kind = "t" + (text[0] === " " ? " b" : "") + (hasNone ? " none" : each.every((k) => greedy(k) || unsure(k)) ? "" : " x");
	const span = make("span", { class: kind, role: "option", tabindex: -1, "data-t": t, "data-n": n, "aria-selected": "false" }, shown(text));
	paint(span);
	return span;
}

function oneStrip(s, each, readout) {
	const first = strips.start[s], n = strips.start[s + 1] - first, left = items.a.leftOut[s];
	const title = strips.titles[items.a.title[s]], context = strips.contexts[items.a.context[s]];
	const line = make("div", { class: "strip", role: "listbox", "aria-label": title || "Tokens", "aria-orientation": "horizontal", dir: "auto" });
	const draw = (from) => {
		const spans = [], end = first + Math.min(n, from + each);
		for (let t = first + from; t < end; t++) if (!continues(t)) spans.push(tokenSpan(t, first + n));
		if (spans.length) spans[0].tabIndex = 0;
		line.replaceChildren(...spans);
	};
	draw(0);
	const look = (e) => { const span = e.target.closest(".t"); if (span) read(span, readout, e.type === "focusin"); };
	line.addEventListener("pointerover", look);
	line.addEventListener("focusin", look);
	line.addEventListener("click", (e) => { const span = e.target.closest(".t"); if (span) span.focus(); });
	line.addEventListener("keydown", walk);
	return make("div", { class: "one" }, title ? make("b", null, title) : "",
		context ? make("details", { class: "context" }, make("summary", null, "Context"), make("div", { class: "text", dir: "auto" }, context)) : "",
		line, left ? make("p", { class: "note" }, "and " + many(left) + " more tokens, which are not held here") : "", turner(n, each, draw));
}

function read(span, readout, focused) {
	const t = Number(span.dataset.t), n = Number(span.dataset.n), each = Array.from({ length: n }, (_, k) => t + k);
	const facts = { [n > 1 ? n + " tokens" : "Token"]: JSON.stringify(strips.texts[items.a.token[t]]) };
	const ids = each.map((k) => strips.ids[items.a.token[k]]), scored = each.filter((k) => items.a.logprob[k] !== MISSING);
	if (ids[0] >= 0) facts.Id = ids.join(", ");
	if (!scored.length && shows.logprob) facts["Log-probability"] = "none: it is the first token";
	else {
		if (!scored.some(unsure)) facts["Most probable"] = scored.map((k) => (greedy(k) ? "yes" : "no ≠")).join(", ");
		if (shows.logprob) facts.Probability = Math.exp(total(shows.logprob, t, n) / 1000).toPrecision(3);
		for (const one of strips.shows) {
			const parts = each.map((k) => factText(one, items.a[one.key][k])).join(", ");
			facts[one.name] = n > 1 ? factText(one, total(one, t, n)) + " (" + parts + ")" : parts;
		}
	}
	readout.replaceChildren(...Object.entries(facts).map(([name, text]) => make("div", null, make("dt", null, name), make("dd", null, text))));
	if (focused) for (const other of span.parentNode.children) other.setAttribute("aria-selected", String(other === span));
}

// a file of what is shown

function save() {
	const quoted = (text) => (/[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);
	const lines = [[...items.columns.map((one) => one.title), "error"]];
	for (const k of view) lines.push([...items.columns.map((one) => one.text(k)), items.errors[k] || ""]);
	const blob = new Blob([lines.map((cells) => cells.map(quoted).join(",") + "\n").join("")], { type: "text/csv;charset=utf-8" });
	const link = make("a", { href: URL.createObjectURL(blob), download: (decodeURIComponent(location.pathname.split("/").pop()) || "report").replace(/\.html$/, "") + ".csv" });
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// together

function update() {
	choose();
	showTable();
	showControls();
	writeHash();
}

function fromHash() {
	readHash();
	showTheme(state.theme);
	if (!items) return;
	if (state.item !== null && state.item >= items.n) state.item = null;
	choose();
	if (state.item !== null && !state.page) openItem(state.item);
	else update();
}

async function start() {
	place("theme").hidden = false;
	place("theme").addEventListener("click", () => { state.theme = isDark(state.theme) ? "light" : "dark"; showTheme(state.theme); writeHash(); });
	readHash();
	showTheme(state.theme);
	addEventListener("hashchange", fromHash);
	if (place("data")) {
		await load();
		const section = place("items");
		section.append(controls(), make("p", { class: "note" }, "One row per item; a head sorts by its column, a name opens the item."), table(), make("div", { id: "pages" }));
		section.addEventListener("click", (e) => {
			if (!e.target.matches(".open")) return;
			const k = Number(e.target.dataset.item);
			openItem(state.item === k ? null : k);
			focusItem(k);
		});
		section.addEventListener("keydown", (e) => {
			const by = { ArrowDown: 1, ArrowUp: -1 }[e.key], names = [...section.querySelectorAll(".open")];
			const to = by && e.target.matches(".open") && names[names.indexOf(e.target) + by];
			if (to) { e.preventDefault(); to.focus(); }
		});
		section.hidden = false;
		root.classList.add("js"); // what needs no script is for paper alone from here on
		fromHash();
	}
	root.dataset.ready = Math.round(performance.now());
}

start().catch((problem) => {
	root.classList.remove("js");
	if (!place("items")) return;
	place("items").hidden = true;
	document.querySelector(".plain").prepend(make("p", { class: "error" }, "This browser cannot show all items: " + problem.message));
});
