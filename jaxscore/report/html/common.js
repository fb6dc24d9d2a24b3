// Functions of all pages. Texts of users and models are put on a page by `textContent` alone.

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const root = document.documentElement;
const many = (n) => n.toLocaleString("en");

function visible(text) {
	return text.replace(UNSEEN, (c) => "⟨" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩");
}

// An element with attributes and parts; a string among the parts becomes text.
function make(name, attributes, ...parts) {
	const element = document.createElement(name);
	for (const [key, value] of Object.entries(attributes || {})) {
		if (key.startsWith("on")) { if (value) element.addEventListener(key.slice(2), value); }
		else if (value === true) element.setAttribute(key, "");
		else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
	}
	element.append(...parts.filter((part) => part !== null && part !== "").map((part) => (typeof part === "string" ? visible(part) : part)));
	return element;
}

const button = (text, onclick, more) => make("button", { type: "button", onclick, ...more }, text);

// light and dark; the theme is "" for the system's

const isDark = (theme) => (theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function showTheme(theme) {
	if (theme) root.dataset.theme = theme;
	else delete root.dataset.theme;
	const toggle = document.getElementById("theme");
	toggle.textContent = isDark(theme) ? "Light" : "Dark";
	toggle.setAttribute("aria-label", isDark(theme) ? "Show in light colours" : "Show in dark colours");
}

// tokens

function shown(text) {
	return text.replace(/\t/g, "⇥").replace(/\n/g, "↵\n") || "∅";
}

// Move the focus along a strip of tokens by the keyboard.
function walk(e) {
	const span = e.target.closest(".t");
	const to = span && { ArrowRight: span.nextElementSibling, ArrowLeft: span.previousElementSibling, ArrowUp: span, ArrowDown: span, Home: span.parentNode.firstElementChild, End: span.parentNode.lastElementChild }[e.key];
	if (!to) return;
	const target = to === span ? onNextLine(span, e.key === "ArrowDown") : to;
	if (!target) return;
	e.preventDefault();
	span.tabIndex = -1;
	target.tabIndex = 0;
	target.focus();
}

// The token nearest to another one on the line below or above it.
function onNextLine(span, isBelow) {
	const next = isBelow ? "nextElementSibling" : "previousElementSibling", { left, top } = span.getBoundingClientRect();
	let best = null, line = null, distance = Infinity;
	for (let other = span[next]; other; other = other[next]) {
		const box = other.getBoundingClientRect();
		if (Math.abs(box.top - top) < box.height / 2) continue;
		if (line === null) line = box.top;
		else if (Math.abs(box.top - line) >= box.height / 2) break;
		if (Math.abs(box.left - left) < distance) [best, distance] = [other, Math.abs(box.left - left)];
	}
	return best;
}
