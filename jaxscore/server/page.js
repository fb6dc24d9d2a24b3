// The page at `GET /` of `jaxscore serve`; `common.js` is before it.
const PAUSE = 150; // milliseconds without a key before a text is sent
const SLOW = 1500; // milliseconds after which the page says why an answer takes long
const MOST = 20000; // characters of a text
const TOP = 8, FEW = 3; // most probable tokens that are listed, and of a part of a character
const BARS = 300; // tokens up to which a text has a bar for each
const BITS = 1 / Math.LN2; // per nat
const SHOWS = {
	surprisal: { name: "Surprisal", top: 8, unit: "bits: how improbable the token is" },
	rank: { name: "Rank", top: 10000, unit: "place of the token in the model's order" },
	entropy: { name: "Entropy", top: 8, unit: "bits: how uncertain the model is before the token" },
};
const MODES = {
	text: { name: "One text", boxes: { text: "Text" } },
	two: { name: "Two continuations", boxes: { context: "Context", a: "Continuation A", b: "Continuation B" } },
};
const EXAMPLE = {
	text: "The capital of Norway is Oslo, and the capital of France is cheese.",
	context: "The capital of Norway is", a: " Oslo", b: " Bergen",
};
// The embedded model knows no other world than its own.
const EXAMPLE_OF_DEMO = {
	text: "Telford borders Merstad. Harport borders Norvaford.\nQUESTION: Which city does Harport border?\nANSWER: Norvaford",
	context: "Telford borders Merstad. Harport borders Norvaford.\nQUESTION: Which city does Harport border?\nANSWER:", a: " Norvaford", b: " Merstad",
};
const values = { ...EXAMPLE }; // name of a box -> its text
const byId = (id) => document.getElementById(id);
const boxes = {}; // name -> its textarea
let state = { theme: "", show: "surprisal", mode: "text" };
let key = "", topK = TOP, isConnected = false;
let timer = 0, isWaiting = false, isChanged = false;
let sides = []; // the strips of the mode

// what the address keeps after its `#`

function readHash() {
	const fields = new URLSearchParams(location.hash.slice(1));
	const among = (name, values, usual) => (values.includes(fields.get(name)) ? fields.get(name) : usual);
	state = {
		theme: among("theme", ["light", "dark"], ""),
		show: among("show", Object.keys(SHOWS), "surprisal"),
		mode: among("mode", Object.keys(MODES), "text"),
	};
}

function writeHash() {
	const fields = Object.entries(state).filter(([name, value]) => value && value !== { show: "surprisal", mode: "text" }[name]);
	history.replaceState(null, "", "#" + new URLSearchParams(fields));
}

// the server

class Refusal extends Error {
	constructor(message, status = 0) {
		super(message);
		this.status = status;
	}
}

async function ask(path, body) {
	const options = { cache: "no-store", credentials: "omit", headers: {} };
	if (key) options.headers.Authorization = "Bearer " + key;
	if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) }).headers["Content-Type"] = "application/json";
	let answer, content = null;
	try {
		answer = await fetch(path, options);
		content = await answer.json();
	} catch {
		throw new Refusal(answer ? "The answer of the server is not JSON (status " + answer.status + ")." : "The server does not answer. Does it still run?");
	}
	if (!answer.ok) throw new Refusal((content && content.error && content.error.message) || "Status " + answer.status, answer.status);
	return content;
}

async function connect() {
	const { data: [model] } = await ask("v1/models");
	byId("model").textContent = visible(model.id);
	document.title = visible(model.id) + ": jaxscore";
	topK = Math.min(TOP, model.max_logprobs);
	if (model.id === "demo" && Object.keys(EXAMPLE).every((name) => values[name] === EXAMPLE[name])) {
		Object.assign(values, EXAMPLE_OF_DEMO);
		for (const [name, box] of Object.entries(boxes)) box.value = values[name];
	}
	byId("key").hidden = true;
	isConnected = true;
}

function showProblem(problem) {
	const isLocked = problem && problem.status === 401;
	if (isLocked) {
		isConnected = false;
		byId("key").hidden = false;
		byId("key-box").focus();
	}
	const text = !problem || (isLocked && !key) ? "" : problem.message;
	byId("problem").textContent = visible(text);
	byId("problem").hidden = !text;
}

// texts to tokens

const contextNow = () => (state.mode === "two" ? values.context : "");

function changed(e) {
	values[e.target.id] = e.target.value;
	for (const side of sides) showPending(side);
	clearTimeout(timer);
	timer = setTimeout(update, PAUSE);
}

// One request is under way at a time; what is typed meanwhile is sent after it.
async function update() {
	if (isWaiting) { isChanged = true; return; }
	[isWaiting, isChanged] = [true, false];
	const slow = setTimeout(() => { byId("status").textContent = "Scoring… The first text of a length takes longer: a program is compiled for it."; }, SLOW);
	try {
		if (!isConnected) await connect();
		const mode = state.mode, context = contextNow();
		const asked = sides.map((side) => ({ side, text: side.box.value })).filter(({ text }) => text);
		const requests = asked.map(({ text }, k) => ({ id: k, context, continuation: text }));
		const { results } = asked.length ? await ask("jaxscore/score", { requests, rank: true, top_k: topK, texts: true }) : { results: [] };
		if (mode === state.mode) {
			const failed = results.find((result) => result.error);
			showProblem(failed ? new Refusal(failed.error) : null);
			asked.forEach(({ side, text }, k) => { side.scored = results[k].error ? null : readTokens(results[k], text, context); });
			for (const side of sides) if (!side.box.value) side.scored = null;
			showResults();
		}
	} catch (problem) {
		showProblem(problem);
	} finally {
		clearTimeout(slow);
		byId("status").textContent = "";
		isWaiting = false;
		root.dataset.answers = Number(root.dataset.answers || 0) + 1;
	}
	if (isChanged) update();
}

// The boxes of a result: a token each, or several tokens that share a character.
function readTokens(result, text, context) {
	const tokens = [];
	result.texts.forEach((part, k) => {
		if (part === null) tokens[tokens.length - 1].parts.push(k);
		else tokens.push({ text: part, parts: [k] });
	});
	// Some tokenizers put a space before a text.
	if (tokens.length && tokens[0].text[0] === " " && text[0] !== " ") tokens[0].text = tokens[0].text.slice(1);
	for (const token of tokens) {
		const { parts } = token, add = (values) => parts.reduce((sum, k) => sum + values[k], 0);
		token.isScored = parts.some((k) => result.logprob[k] !== null);
		token.isGreedy = parts.every((k) => result.greedy[k] !== false);
		token.logprob = add(result.logprob);
		token.surprisal = -token.logprob * BITS;
		token.entropy = add(result.entropy) * BITS;
		token.rank = Math.max(...parts.map((k) => result.rank[k]));
	}
	return { result, tokens, text, context };
}

function amount(token) {
	const { top } = SHOWS[state.show], value = token[state.show];
	if (!token.isScored) return 0;
	return Math.min(1, Math.max(0, state.show === "rank" ? Math.log10(value) / Math.log10(top) : value / top));
}

// strips

function tokenSpan(side, k) {
	const token = side.scored.tokens[k];
	const look = "t" + (token.text[0] === " " ? " b" : "") + (!token.isScored ? " none" : token.isGreedy ? "" : " x");
	const span = make("span", { class: look, role: "option", tabindex: k ? -1 : 0, "data-k": k, "aria-selected": "false" }, shown(token.text));
	return span;
}

function paint(side) {
	for (const span of side.card.querySelectorAll("[data-k]")) span.style.setProperty("--a", amount(side.scored.tokens[span.dataset.k]).toFixed(3));
}

function showResults() {
	const some = sides.filter((side) => side.scored);
	byId("results").hidden = !some.length;
	for (const side of sides) {
		side.card.hidden = !side.scored;
		const tokens = side.scored ? side.scored.tokens : [];
		side.line.replaceChildren(...tokens.map((_, k) => tokenSpan(side, k)));
		side.bars.hidden = tokens.length > BARS;
		side.bars.replaceChildren(...(side.bars.hidden ? [] : tokens.map((_, k) => make("span", { "data-k": k }))));
		paint(side);
		side.facts.replaceChildren(...(side.scored ? factsOf(side.scored.result) : []));
		showPending(side);
	}
	showVersus();
	const all = some.flatMap((side) => side.scored.tokens.map((token, k) => ({ side, token, k }))).filter(({ token }) => token.isScored);
	const worst = all.reduce((best, other) => (best && best.token.surprisal >= other.token.surprisal ? best : other), null);
	if (worst) showToken(worst.side, worst.k, "Most surprising token");
	byId("token").hidden = !worst;
}

function factsOf({ n_tokens, sum_logprob, mean_logprob, perplexity }) {
	const counted = make("span", null, make("b", null, many(n_tokens)), n_tokens === 1 ? " token" : " tokens");
	if (sum_logprob === null) return [counted];
	return [
		counted, " ",
		make("span", null, make("b", null, (-sum_logprob * BITS).toLocaleString("en", { maximumFractionDigits: 1 })), " bits"), " ",
		make("span", null, make("b", null, (-mean_logprob * BITS).toFixed(2)), " bits per token"), " ",
		make("span", null, "perplexity ", make("b", null, three(perplexity))),
	];
}

// Keep the tokens that the text still begins with, and show what was typed since as plain text.
function showPending(side) {
	const text = side.box.value, context = contextNow();
	if (side.hint) side.hint.hidden = !(text && context && /[\p{L}\p{N}]$/u.test(context) && /^[\p{L}\p{N}]/u.test(text));
	if (!side.scored) return;
	side.line.querySelector(".pending")?.remove();
	let n = 0, k = 0;
	const { tokens } = side.scored, spans = side.line.children;
	while (k < tokens.length && text.startsWith(tokens[k].text, n)) n += tokens[k++].text.length;
	const isWhole = text === side.scored.text;
	if (isWhole) [n, k] = [text.length, tokens.length];
	for (let j = 0; j < spans.length; j++) spans[j].hidden = j >= k;
	if (n < text.length) side.line.append(make("span", { class: "pending" }, shown(text.slice(n))));
	side.line.classList.toggle("stale", context !== side.scored.context);
}

function showVersus() {
	const [first, second] = sides.map((side) => side.scored && side.scored.result.sum_logprob);
	const isShown = state.mode === "two" && Number.isFinite(first) && Number.isFinite(second);
	byId("versus").hidden = !isShown;
	if (!isShown) return;
	const gap = first - second, share = 1 / (1 + Math.exp(-gap)), [more, less] = gap >= 0 ? "AB" : "BA", factor = Math.exp(Math.abs(gap));
	const times = factor < 1e6 ? three(factor) : "10^" + (Math.abs(gap) / Math.LN10).toFixed(1);
	const sentence = factor < 1.005 ? ["A and B are equally probable."] : [make("b", null, more), " is ", make("b", null, times), " times as probable as ", make("b", null, less), "."];
	const bar = make("div", { class: "split", role: "img", "aria-label": "Share of A: " + percent(share) }, make("span"), make("span"));
	bar.firstChild.style.setProperty("--a", share.toFixed(4));
	byId("versus").replaceChildren(make("p", null, ...sentence), bar);
}

// the token at the pointer or with the focus

const three = (x) => (Math.abs(x) < 999.5 ? x.toPrecision(3) : Math.abs(x) < 1e6 ? many(Math.round(x)) : x.toExponential(1).replace("+", ""));

function percent(p) {
	if (p >= 0.9995) return "> 99.9 %";
	return p < 0.0001 ? (p < 1e-300 ? "0 %" : (100 * p).toExponential(0) + " %") : (100 * p).toPrecision(p < 0.001 ? 1 : p < 0.1 ? 2 : 3) + " %";
}

function quoted(text) {
	return (text.startsWith(" ") ? "·" + text.slice(1) : text).replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}

function showToken(side, k, title) {
	const { result, tokens } = side.scored, token = tokens[k], { parts } = token;
	for (const other of sides) for (const span of other.card.querySelectorAll("[data-k]")) span.setAttribute("aria-selected", String(other === side && Number(span.dataset.k) === k));
	const where = (state.mode === "two" ? side.label + " · " : "") + (title || "Token " + many(parts[0] + 1) + (parts.length > 1 ? "–" + many(parts.at(-1) + 1) : "") + " of " + many(result.n_tokens));
	const numbers = token.isScored
		? {
			Surprisal: token.surprisal.toFixed(2) + " bits", Rank: many(token.rank), Entropy: token.entropy.toFixed(2) + " bits",
			Probability: percent(Math.exp(token.logprob)), "Log-prob.": token.logprob.toFixed(3), [parts.length > 1 ? parts.length + " ids" : "Id"]: parts.map((j) => result.token_ids[j]).join(", "),
		}
		: { Probability: "none: nothing is before it", Id: parts.map((j) => result.token_ids[j]).join(", ") };
	byId("token").replaceChildren(
		make("p", { class: "note" }, where),
		make("h2", { dir: "auto" }, quoted(token.text)),
		make("dl", { class: "numbers", role: "status" }, ...Object.entries(numbers).map(([name, text]) => make("div", null, make("dt", null, name), make("dd", null, text)))),
		...(topK ? parts.map((j, at) => alternatives(result, j, parts.length > 1 ? "this part" : token.text, parts.length > 1 ? FEW : TOP, parts.length > 1 ? "Expected at part " + (at + 1) + " of " + parts.length : "Expected here")) : []),
	);
}

function alternatives(result, j, name, most, caption) {
	const ids = result.top_id[j] && result.top_id[j].slice(0, most);
	if (!ids) return "";
	const rows = ids.map((id, k) => [k + 1, result.top_text[j][k], result.top_logprob[j][k], id === result.token_ids[j]]);
	if (!rows.some((row) => row[3])) rows.push([result.rank[j], name, result.logprob[j], true]);
	return make("table", null, make("caption", null, caption), make("tbody", null, ...rows.map(([rank, text, logprob, isActual]) => {
		const bar = make("span");
		bar.style.setProperty("--a", Math.exp(logprob).toFixed(4));
		return make("tr", { class: isActual ? "actual" : null },
			make("td", { class: "number" }, many(rank)),
			make("th", { scope: "row", class: "text", dir: "auto", title: visible(text) }, quoted(text), isActual ? make("span", { class: "mark" }, " ✓") : ""),
			make("td", { class: "share" }, bar),
			make("td", { class: "number percent" }, percent(Math.exp(logprob))));
	})));
}

// controls

function choices(values, chosen, onchoice) {
	return Object.entries(values).map(([value, { name }]) => button(name, () => onchoice(value), { "aria-pressed": String(value === chosen) }));
}

function showColours() {
	byId("shows").replaceChildren(...choices(SHOWS, state.show, (show) => { state.show = show; writeHash(); showColours(); byId("shows").querySelector("[aria-pressed=true]").focus(); }));
	const { top, unit } = SHOWS[state.show];
	const legend = [0, 1, 2, 3, 4].map((k) => {
		const box = make("span", { class: "t" }, (k === 4 ? "≥ " : "") + many(state.show === "rank" ? 10 ** k : (k * top) / 4));
		box.style.setProperty("--a", k / 4);
		return box;
	});
	byId("legend").replaceChildren(...legend, make("span", { class: "note" }, unit + " · ≠ not the most probable token"));
	sides.forEach(paint);
}

function makeSide(name, label) {
	const line = make("div", { class: "strip", role: "listbox", "aria-label": "Tokens of " + label, "aria-orientation": "horizontal", dir: "auto" });
	const facts = make("p", { class: "facts" }), bars = make("div", { class: "bars", "aria-hidden": "true" });
	const head = state.mode === "two" ? make("p", { class: "facts" }, make("b", null, make("span", { class: "side " + name }), label)) : "";
	const side = { box: boxes[name], label: name.toUpperCase(), line, bars, facts, scored: null, card: make("div", { class: "card" }, head, facts, bars, line) };
	if (state.mode === "two") {
		side.hint = make("p", { class: "hint", hidden: true }, "It joins the context's last word; begin it with a space if it is a new one.");
		side.box.after(side.hint);
	}
	const look = (e) => { const span = e.target.closest("[data-k]"); if (span && side.scored) showToken(side, Number(span.dataset.k)); };
	side.card.addEventListener("pointerover", look);
	line.addEventListener("focusin", look);
	line.addEventListener("click", (e) => { const span = e.target.closest("[data-k]"); if (span) span.focus(); });
	line.addEventListener("keydown", (e) => { if (e.key === "Escape") side.box.focus(); else walk(e); });
	return side;
}

function showMode() {
	byId("modes").replaceChildren(...choices(MODES, state.mode, (mode) => { state.mode = mode; writeHash(); showMode(); byId("modes").querySelector("[aria-pressed=true]").focus(); }));
	const isTwo = state.mode === "two", names = Object.entries(MODES[state.mode].boxes);
	const labels = names.map(([name, label]) => {
		boxes[name] = make("textarea", { id: name, rows: 2, maxlength: MOST, spellcheck: "false", dir: "auto", oninput: changed });
		boxes[name].value = values[name];
		const head = name === "context" || name === "text" ? label : make("span", null, make("span", { class: "side " + name }), label);
		return make("label", null, head, boxes[name]);
	});
	byId("inputs").replaceChildren(make("div", { class: "boxes" }, labels[0]), ...(isTwo ? [make("div", { class: "boxes two" }, ...labels.slice(1))] : []));
	sides = names.slice(isTwo ? 1 : 0).map(([name, label]) => makeSide(name, label));
	byId("strips").classList.toggle("two", isTwo);
	byId("strips").replaceChildren(...sides.map((side) => side.card));
	showResults();
	update();
}

function start() {
	byId("theme").addEventListener("click", () => { state.theme = isDark(state.theme) ? "light" : "dark"; showTheme(state.theme); writeHash(); });
	byId("key").addEventListener("submit", (e) => {
		e.preventDefault();
		key = byId("key-box").value;
		byId("key-box").value = "";
		update();
	});
	addEventListener("hashchange", () => { const { mode } = state; readHash(); showTheme(state.theme); showColours(); if (mode !== state.mode) showMode(); });
	readHash();
	showTheme(state.theme);
	showMode();
	showColours();
	root.dataset.ready = Math.round(performance.now());
}

start();
