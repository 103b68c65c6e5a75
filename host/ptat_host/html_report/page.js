"use strict";
// Draws the report from the JSON in #data. Text goes into the page as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#0b6bcb", "#e07b00", "#1a9b6c", "#b5448f", "#8a6d3b", "#5b5bd6", "#c0392b", "#4f7a28"];
const OTHERS = "#8a94a3";
const SVG = "http://www.w3.org/2000/svg";

const body = id => document.querySelector(`#${id} .body`);
const count = n => n.toLocaleString("en");
const percent = share => `${(100 * share).toFixed(share < 0.001 && share > 0 ? 3 : 1)} %`;
const hex = n => "0x" + n.toString(16).padStart(12, "0");

function bytes(n) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let unit = 0;
	for (; n >= 1024 && unit < 4; unit++)
		n /= 1024;
	return `${Number(n.toFixed(1))} ${units[unit]}`;
}

function seconds(ns, step) {
	const [scale, unit] = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
	return `${Number((ns / scale).toFixed(2)).toLocaleString("en")} ${unit}`;
}

function element(parent, name, attributes = {}, text) {
	const made = document.createElement(name);
	for (const [key, value] of Object.entries(attributes))
		made.setAttribute(key, value);
	if (text !== undefined)
		made.textContent = text;
	parent.append(made);
	return made;
}

function shape(parent, name, attributes, text) {
	const made = document.createElementNS(SVG, name);
	for (const [key, value] of Object.entries(attributes))
		made.setAttribute(key, value);
	if (text !== undefined)
		made.textContent = text;
	parent.append(made);
	return made;
}

function caption(parent, text) {
	element(parent, "p", { class: "caption" }, text);
}

const tip = document.getElementById("tip");

function showTip(event, text) {
	tip.textContent = text;
	tip.hidden = false;
	const { width, height } = tip.getBoundingClientRect();
	tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
	tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}

function hideTip() {
	tip.hidden = true;
}

// Tables -----------------------------------------------------------------------------------------

const ROWS = 200;

/* columns: {name, key: row => what is sorted by, text: row => what is shown, kind} */
function table(parent, columns, rows, sortedBy, what) {
	const tools = element(parent, "div", { class: "tools" });
	const filter = element(tools, "input", { type: "search", placeholder: `filter ${what}`, "aria-label": `filter ${what}` });
	const shown = element(tools, "span");
	const more = element(tools, "button", { type: "button" }, "show all");
	const made = element(element(parent, "div", { class: "scroll" }), "table");
	const head = element(element(made, "thead"), "tr");
	const list = element(made, "tbody");
	let column = sortedBy, down = true, limit = ROWS;

	const heads = columns.map((one, index) => {
		const th = element(head, "th", { scope: "col", class: one.kind ?? "" });
		element(th, "button", { type: "button" }, one.name).onclick = () => {
			down = index === column ? !down : typeof one.key(rows[0] ?? {}) === "number";
			column = index;
			draw();
		};
		return th;
	});

	function draw() {
		const wanted = filter.value.toLowerCase();
		const { key } = columns[column];
		const found = rows.filter(row => !wanted || columns.some(one => one.text(row).toLowerCase().includes(wanted)));
		found.sort((a, b) => {
			const [x, y] = [key(a), key(b)];
			return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
		});
		heads.forEach((th, index) =>
			th.setAttribute("aria-sort", index !== column ? "none" : down ? "descending" : "ascending"));
		list.replaceChildren();
		for (const row of found.slice(0, limit)) {
			const tr = element(list, "tr");
			for (const one of columns) {
				const td = element(tr, "td", { class: one.kind ?? "" }, one.text(row));
				if (one.share)
					td.style.backgroundSize = `${100 * one.share(row)}% 100%`;
			}
		}
		shown.textContent = `${count(Math.min(limit, found.length))} of ${count(found.length)}`;
		more.hidden = found.length <= limit;
	}
	filter.oninput = draw;
	more.onclick = () => { limit = Infinity; draw(); };
	draw();
}

// Charts -----------------------------------------------------------------------------------------

function ticks(low, high, wanted) {
	const raw = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(raw));
	const step = power * [1, 2, 5, 10].find(n => n * power >= raw);
	const found = [];
	for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step)
		found.push(at);
	return found;
}

/* lines: {name, colour, x: [], y: []}; log: the y axis is logarithmic, from 1 up */
function chart(parent, { title, lines, xMax, yMax, xText, yText, xName, yName, log }) {
	const [width, height, left, right, top, bottom] = [widthOf(parent), 300, 62, 24, 26, 42];
	const svg = shape(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
	const scale = log ? y => Math.log10(Math.max(y, 1)) / (Math.log10(Math.max(yMax, 1)) || 1) : y => y / (yMax || 1);
	const px = x => left + x / (xMax || 1) * (width - left - right);
	const py = y => height - bottom - scale(y) * (height - top - bottom);

	const levels = log ? [...Array(Math.ceil(Math.log10(Math.max(yMax, 1))) + 1).keys()].map(n => 10 ** n).filter(n => n <= yMax * 1.01) : ticks(0, yMax, 5);
	for (const y of levels) {
		shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: py(y), y2: py(y) });
		shape(svg, "text", { x: left - 8, y: py(y) + 4, "text-anchor": "end" }, yText(y));
	}
	for (const x of ticks(0, xMax, width / 90))
		shape(svg, "text", { x: px(x), y: height - bottom + 18, "text-anchor": "middle" }, xText(x));
	shape(svg, "text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xName);
	shape(svg, "text", { x: 8, y: 14 }, yName);
	for (const line of lines) {
		const points = line.x.map((x, i) => `${px(x).toFixed(1)},${py(line.y[i]).toFixed(1)}`).join(" ");
		shape(svg, "polyline", { points, fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-linejoin": "round" });
	}
	const mark = shape(svg, "line", { stroke: "currentColor", "stroke-opacity": 0.4, y1: top, y2: height - bottom, visibility: "hidden" });
	svg.onpointermove = event => {
		const box = svg.getBoundingClientRect();
		const x = ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * xMax;
		if (x < 0 || x > xMax)
			return svg.onpointerleave();
		mark.setAttribute("x1", px(x));
		mark.setAttribute("x2", px(x));
		mark.setAttribute("visibility", "visible");
		const values = lines.map(line => {
			let at = line.x.findIndex(one => one >= x);
			at = at < 0 ? line.x.length - 1 : at;
			return `${line.name}: ${yText(line.y[at])}`;
		});
		showTip(event, [xText(x), ...values].join("\n"));
	};
	svg.onpointerleave = () => { mark.setAttribute("visibility", "hidden"); hideTip(); };
}

/* So that a unit is a pixel, and text as large as that around it. */
function widthOf(parent) {
	return Math.max(280, parent.clientWidth);
}

function legend(parent, entries) {
	const made = element(parent, "div", { class: "legend" });
	for (const [name, colour] of entries) {
		const span = element(made, "span");
		element(span, "i").style.background = colour;
		span.append(name);
	}
}

// Sections ---------------------------------------------------------------------------------------

function header() {
	document.title = `ptat: ${data.command}`;
	document.getElementById("command").textContent = data.command;
	document.getElementById("ended").textContent = data.ended;
	const tiles = document.getElementById("totals");
	for (const [name, value, bad] of data.totals) {
		const tile = element(tiles, "div", { class: bad ? "tile bad" : "tile" });
		element(tile, "b", {}, typeof value === "number" ? count(value) : value);
		element(tile, "span", {}, name);
	}
	const trust = document.getElementById("trust");
	if (!data.problems.length) {
		trust.textContent = "Complete: nothing was lost, untraced or unexplained.";
		return;
	}
	trust.className = "bad";
	const list = element(trust, "ul");
	for (const problem of data.problems)
		element(list, "li", {}, problem);
}

function objects() {
	const place = body("objects");
	if (!data.objects.length)
		return caption(place, data.noObjects);
	const total = data.misses || 1;
	const sizes = [...new Set(data.objects.flatMap(one => Object.keys(one.misses_by_page_size)))].sort((a, b) => a - b);
	table(place, [
		{ name: "object", kind: "text wide mono", key: o => o.name, text: o => o.name },
		{ name: "kind", kind: "text", key: o => o.kind, text: o => o.kind },
		{ name: "process", kind: "text", key: o => o.comm, text: o => `${o.comm} ${o.tgid}` },
		{ name: "misses", key: o => o.misses, text: o => count(o.misses) },
		{ name: "share", kind: "share", key: o => o.misses, text: o => percent(o.misses / total), share: o => o.misses / total },
		{ name: "pages", key: o => o.pages, text: o => count(o.pages) },
		{ name: "size", key: o => o.bytes, text: o => (o.blocks > 1 ? `${count(o.blocks)} × ` : "") + bytes(o.bytes) },
		...sizes.map(size => ({ name: `in ${bytes(+size)}`, key: o => o.misses_by_page_size[size] ?? 0, text: o => count(o.misses_by_page_size[size] ?? 0) })),
		{ name: "shared", key: o => o.shared, text: o => count(o.shared) },
		{ name: "where", kind: "text wide", key: o => o.detail, text: o => o.detail },
	], data.objects, 3, "objects");
	caption(place, "Each miss is of what was mapped at its page at its time. Shared: misses of pages, or of groups of pages that a bus address stands for, which belong to several objects; they are shown at the one that has most of it. Size: of the largest block, and how many there were.");
}

function pages() {
	table(body("pages"), [
		{ name: "address", kind: "text mono", key: p => p.vaddr, text: p => p.address },
		{ name: "process", kind: "text", key: p => p.comm, text: p => `${p.comm} ${p.tgid}` },
		{ name: "object", kind: "text wide mono", key: p => p.object, text: p => p.object },
		{ name: "page", key: p => p.page_size_bytes, text: p => (p.span > 1 ? `one of ${p.span} × ` : "") + bytes(p.page_size_bytes) },
		{ name: "misses", key: p => p.misses, text: p => count(p.misses) },
		{ name: "share", key: p => p.misses, text: p => percent(p.misses / (data.misses || 1)) },
		{ name: "faulted", key: p => p.faulted, text: p => count(p.faulted) },
	], data.pages, 4, "pages");
}

function processes() {
	const place = body("processes");
	table(place, [
		{ name: "process", kind: "text", key: p => p.comm, text: p => p.comm },
		{ name: "tgid", key: p => p.tgid, text: p => String(p.tgid) },
		{ name: "misses", key: p => p.misses, text: p => count(p.misses) },
		{ name: "share", kind: "share", key: p => p.share, text: p => percent(p.share), share: p => p.share },
		{ name: "pages", key: p => p.pages, text: p => count(p.pages) },
		{ name: "faulted walks", key: p => p.faulted, text: p => count(p.faulted) },
		{ name: "untraced", key: p => p.untraced_bytes, text: p => p.untraced_bytes ? bytes(p.untraced_bytes) : "–" },
	], data.processes, 2, "processes");
	if (data.moreProcesses)
		caption(place, `… and ${count(data.moreProcesses)} more with fewer misses.`);
}

/* A section that only sessions with traps have, before another one. */
function section(id, title, before) {
	const made = document.createElement("section");
	made.id = id;
	element(made, "h2", {}, title);
	element(made, "div", { class: "body" });
	document.getElementById(before).before(made);
	const link = document.createElement("a");
	link.href = `#${id}`;
	link.textContent = id;
	document.querySelector(`nav a[href="#${before}"]`).before(link);
	return body(id);
}

function traps() {
	const { functions, threads, accesses } = data.traps;
	const misses = { name: "misses", key: r => r.misses, text: r => count(r.misses) };
	const share = { name: "share", kind: "share", key: r => r.share, text: r => percent(r.share), share: r => r.share };
	const of = (name, field) => ({ name, key: r => r[field], text: r => count(r[field]) });
	if (functions)
		table(section("functions", "Hottest functions", "pages"), [
			{ name: "function", kind: "text wide mono", key: r => r.function, text: r => r.function },
			{ name: "object", kind: "text", key: r => r.object, text: r => r.object },
			misses, share, of("reads", "reads"), of("writes", "writes"), of("fetches", "fetches"),
		], functions, 2, "functions");
	if (threads)
		table(section("threads", "Threads", "processes"), [
			{ name: "thread", kind: "text", key: r => r.name, text: r => r.name },
			{ name: "process", kind: "text", key: r => r.comm, text: r => `${r.comm} ${r.tgid}` },
			{ name: "tid", key: r => r.tid, text: r => String(r.tid) },
			misses, share, of("pages", "pages"),
		], threads, 3, "threads");
	table(section("accesses", "Kinds of access", "processes"), [
		{ name: "access", kind: "text", key: r => r.access, text: r => r.access },
		misses, share,
	], accesses, 1, "accesses");
}

function sizes() {
	const place = body("sizes");
	const all = [...new Set(data.sizes.flatMap(one => Object.keys(one.misses)))].sort((a, b) => a - b);
	if (!all.length)
		return caption(place, "There were no misses.");
	const grid = element(place, "div", { class: "split" });
	for (const one of data.sizes) {
		element(grid, "span", { title: one.name }, one.name);
		const bar = element(grid, "div", { class: "bar" });
		const total = Object.values(one.misses).reduce((a, b) => a + b, 0) || 1;
		all.forEach((size, index) => {
			const share = (one.misses[size] ?? 0) / total;
			const part = element(bar, "div");
			part.style.cssText = `width:${100 * share}%;background:${COLOURS[index]}`;
			part.onpointermove = event => showTip(event, `${one.name}\n${bytes(+size)}: ${count(one.misses[size] ?? 0)} misses, ${percent(share)}`);
			part.onpointerleave = hideTip;
		});
	}
	legend(place, all.map((size, index) => [`misses on ${bytes(+size)} pages`, COLOURS[index]]));
}

function curves() {
	const place = body("curves");
	if (!data.curves.length)
		return caption(place, "There were no misses.");
	const pair = element(place, "div", { class: "pair" });
	const lines = data.curves.map((one, index) => ({ name: one.name, colour: COLOURS[index % COLOURS.length], ...one }));
	const [cdf, average] = [element(pair, "div"), element(pair, "div")];
	const common = { xMax: 100, xText: x => `${Number(x.toFixed(1))} %`, xName: data.curveX };
	chart(cdf, { ...common, title: "share of misses", lines: lines.map(one => ({ ...one, y: one.share })), yMax: 100, yText: y => `${Number(y.toFixed(1))} %`, yName: "share of all misses" });
	caption(cdf, "Pages are sorted by misses, the coolest first; the curve says which share of all misses the pages up to there have. Read it from the right: where it is at 40 % for 80 % of the pages, the hottest fifth has 60 %. A straight line: all pages miss alike, and no page is worth more than another.");
	const most = Math.max(1, ...lines.flatMap(one => one.average));
	chart(average, { ...common, title: "misses of a page", lines: lines.map(one => ({ ...one, y: one.average })), yMax: most, yText: y => count(Number(y.toFixed(1))), yName: "misses of a page", log: true });
	caption(average, data.averageCaption);
	if (lines.length > 1)
		legend(place, lines.map(one => [one.name, one.colour]));
}

function time() {
	const place = body("time");
	const { bins, stepNs, series, gaps } = data.time;
	if (!bins)
		return caption(place, data.noMisses);
	const [width, height, left, right, top, bottom] = [widthOf(place), 240, 70, 24, 24, 40];
	const svg = shape(place, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "misses over time" });
	const sums = Array.from({ length: bins }, (_, i) => series.reduce((sum, one) => sum + one.misses[i], 0));
	const most = Math.max(1, ...sums);
	const px = i => left + i / bins * (width - left - right);
	const py = y => height - bottom - y / most * (height - top - bottom);
	for (const y of ticks(0, most, 4)) {
		shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: py(y), y2: py(y) });
		shape(svg, "text", { x: left - 8, y: py(y) + 4, "text-anchor": "end" }, count(y));
	}
	const base = new Array(bins).fill(0);
	series.forEach((one, index) => {
		const up = [], back = [];
		for (let i = 0; i < bins; i++) {
			const y = base[i] + one.misses[i];
			up.push(`${px(i).toFixed(1)},${py(y).toFixed(1)} ${px(i + 1).toFixed(1)},${py(y).toFixed(1)}`);
			back.unshift(`${px(i + 1).toFixed(1)},${py(base[i]).toFixed(1)} ${px(i).toFixed(1)},${py(base[i]).toFixed(1)}`);
			base[i] = y;
		}
		shape(svg, "polygon", { points: [...up, ...back].join(" "), fill: one.others ? OTHERS : COLOURS[index % COLOURS.length] });
	});
	for (const [from, to] of gaps)
		shape(svg, "rect", { class: "gap", x: px(from), width: Math.max(2, px(to) - px(from)), y: top, height: height - top - bottom, fill: "var(--bad)", "fill-opacity": 0.3 });
	for (const ns of ticks(0, bins * stepNs, width / 110))
		shape(svg, "text", { x: px(ns / stepNs), y: height - bottom + 18, "text-anchor": "middle" }, seconds(ns, bins * stepNs / 8));
	shape(svg, "text", { x: 8, y: 14 }, `misses in ${seconds(stepNs, stepNs)}`);
	shape(svg, "text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "time since the first walk");
	svg.onpointermove = event => {
		const box = svg.getBoundingClientRect();
		const i = Math.floor(((event.clientX - box.left) * width / box.width - left) / (width - left - right) * bins);
		if (i < 0 || i >= bins)
			return hideTip();
		showTip(event, [seconds(i * stepNs, stepNs), ...series.filter(one => one.misses[i]).map(one => `${one.name}: ${count(one.misses[i])}`)].join("\n"));
	};
	svg.onpointerleave = hideTip;
	if (series.length > 1)
		legend(place, series.map((one, index) => [one.name, one.others ? OTHERS : COLOURS[index % COLOURS.length]]));
	caption(place, `The first walk was at ${(data.time.startNs / 1e9).toFixed(6)} s of kernel time. ` + (gaps.length ? "Red: something was lost here; misses may be missing or wrong." : "Nothing was lost at any time."));
}

// Heat map ---------------------------------------------------------------------------------------

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function ramp(share) {
	const at = Math.min(share, 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
	return RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low)));
}

async function unpack(text) {
	const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
	return new Uint32Array(await new Response(stream).arrayBuffer());
}

async function heatMap() {
	const place = body("map");
	if (!data.maps.length)
		return caption(place, data.noMisses);
	const tools = element(place, "div", { class: "tools" });
	const select = element(tools, "select", { "aria-label": "process" });
	data.maps.forEach((one, index) => element(select, "option", { value: index }, one.name));
	const reset = element(tools, "button", { type: "button" }, "whole map");
	const where = element(tools, "span", { id: "window" });
	const canvas = element(place, "canvas", { height: 480, "aria-label": "heat map of misses by time and address" });
	const names = element(place, "div", { class: "legend" });
	caption(place, "Colour: misses in a cell, logarithmic; dark is none. Left edge: which object has most misses of a row. Addresses that were never missed are left out (a line shows where). Drag to zoom, turn the wheel to zoom at the pointer, double-click for the whole map.");
	let map, cells, view, drag;

	async function choose(index) {
		map = data.maps[index];
		cells = await unpack(map.cells);
		whole();
		names.replaceChildren();
		map.objects.forEach((name, i) => {
			const span = element(names, "span");
			element(span, "i").style.background = colour(i);
			span.append(name);
		});
	}
	const colour = i => i < 0 || i >= COLOURS.length ? OTHERS : COLOURS[i];
	function whole() {
		view = { t0: 0, t1: data.time.bins, r0: 0, r1: map.rows };
		draw();
	}
	const EDGE = 14, LEFT = 132, FOOT = 26;
	const plot = () => ({ width: canvas.width / devicePixelRatio - LEFT, height: canvas.height / devicePixelRatio - FOOT });

	function draw() {
		const ratio = devicePixelRatio;
		canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
		canvas.height = Math.round((innerWidth < 600 ? 360 : 480) * ratio);
		canvas.style.height = `${canvas.height / ratio}px`;
		const context = canvas.getContext("2d");
		const { width, height } = plot();
		const style = getComputedStyle(document.documentElement);
		const w = Math.max(1, Math.min(Math.floor(width), 1600)), h = Math.max(1, Math.floor(height));
		// Sums of what falls into a pixel, so that single hot cells stay when all is in view.
		const sums = new Float64Array(w * h);
		const perX = w / (view.t1 - view.t0), perY = h / (view.r1 - view.r0);
		for (let r = Math.floor(view.r0); r < Math.min(Math.ceil(view.r1), map.rows); r++) {
			const y1 = Math.max(0, Math.floor((view.r1 - r - 1) * perY)), y2 = Math.min(h, Math.max(y1 + 1, Math.ceil((view.r1 - r) * perY)));
			for (let t = Math.floor(view.t0); t < Math.min(Math.ceil(view.t1), data.time.bins); t++) {
				const misses = cells[r * data.time.bins + t];
				if (!misses)
					continue;
				const x1 = Math.max(0, Math.floor((t - view.t0) * perX)), x2 = Math.min(w, Math.max(x1 + 1, Math.ceil((t + 1 - view.t0) * perX)));
				for (let y = y1; y < y2; y++)
					for (let x = x1; x < x2; x++)
						sums[y * w + x] += misses;
			}
		}
		let most = 1;
		for (const sum of sums)
			most = Math.max(most, sum);
		const image = new ImageData(w, h);
		const log = Math.log1p(most);
		for (let i = 0; i < sums.length; i++) {
			const [r, g, b] = sums[i] ? ramp(0.15 + 0.85 * Math.log1p(sums[i]) / log) : [20, 10, 30];
			image.data.set([r, g, b, 255], 4 * i);
		}
		const off = new OffscreenCanvas(w, h);
		off.getContext("2d").putImageData(image, 0, 0);
		context.setTransform(ratio, 0, 0, ratio, 0, 0);
		context.clearRect(0, 0, canvas.width, canvas.height);
		context.imageSmoothingEnabled = false;
		context.drawImage(off, LEFT, 0, width, height);
		const y = r => (view.r1 - r) / (view.r1 - view.r0) * height;
		for (let r = Math.floor(view.r0); r < Math.min(Math.ceil(view.r1), map.rows); r++) {
			context.fillStyle = colour(map.rowObject[r]);
			context.fillRect(LEFT - EDGE, y(r + 1), EDGE - 3, Math.max(y(r) - y(r + 1), 0.5));
		}
		context.font = "12px ui-monospace, monospace";
		context.fillStyle = style.getPropertyValue("--dim");
		context.textBaseline = "middle";
		let last = Infinity;
		const rows = [];
		for (let r = Math.max(0, Math.ceil(view.r0)); r < Math.min(map.rows, view.r1); r++)
			if (map.breaks.includes(r) || r === Math.ceil(view.r0))
				rows.push(r);
		for (let n = 1; n < 8; n++)
			rows.push(Math.floor(view.r0 + n / 8 * (view.r1 - view.r0)));
		rows.sort((a, b) => a - b);
		for (const r of rows) {
			const at = Math.min(y(r), height - 7);
			if (map.breaks.includes(r)) {
				context.fillStyle = "#ffffff90";
				context.fillRect(LEFT, y(r) - 0.5, width, 1);
				context.fillStyle = style.getPropertyValue("--dim");
			}
			if (last - at >= 16 && at > 6 && r < map.rows) {
				context.textAlign = "right";
				context.fillText(address(r), LEFT - EDGE - 4, at);
				last = at;
			}
		}
		context.textBaseline = "top";
		context.textAlign = "center";
		const windowNs = (view.t1 - view.t0) * data.time.stepNs;
		for (const ns of ticks(view.t0 * data.time.stepNs, view.t1 * data.time.stepNs, Math.max(2, Math.floor(width / 120))))
			context.fillText(seconds(ns, windowNs / 8), Math.min(LEFT + (ns / data.time.stepNs - view.t0) * perX * width / w, LEFT + width - 24), height + 8);
		where.textContent = `${address(Math.max(0, Math.floor(view.r0)))} – ${address(Math.min(map.rows, Math.ceil(view.r1)) - 1)}`;
		if (drag?.x2 !== undefined) {
			context.strokeStyle = "#fff";
			context.strokeRect(Math.min(drag.x1, drag.x2), Math.min(drag.y1, drag.y2), Math.abs(drag.x2 - drag.x1), Math.abs(drag.y2 - drag.y1));
		}
	}
	// Addresses need more bits than a double has only above 2^53: they come in units of 4 KiB.
	const address = r => "0x" + (BigInt(map.rowPage[Math.max(0, Math.min(r, map.rows - 1))]) << 12n).toString(16).padStart(12, "0");
	function at(event) {
		const box = canvas.getBoundingClientRect();
		const { width, height } = plot();
		const x = Math.max(LEFT, Math.min(event.clientX - box.left, LEFT + width)), y = Math.max(0, Math.min(event.clientY - box.top, height));
		return { x, y, t: view.t0 + (x - LEFT) / width * (view.t1 - view.t0), r: view.r1 - y / height * (view.r1 - view.r0) };
	}
	function look(t0, t1, r0, r1) {
		const fit = (low, high, least, most) => {
			const size = Math.min(Math.max(high - low, least), most);
			low = Math.max(0, Math.min((low + high - size) / 2, most - size));
			return [low, low + size];
		};
		[t0, t1] = fit(t0, t1, 4, data.time.bins);
		[r0, r1] = fit(r0, r1, Math.min(4, map.rows), map.rows);
		view = { t0, t1, r0, r1 };
		draw();
	}
	canvas.onpointerdown = event => {
		const { x, y } = at(event);
		drag = { x1: x, y1: y, from: at(event) };
		canvas.setPointerCapture(event.pointerId);
	};
	canvas.onpointermove = event => {
		const here = at(event);
		if (drag) {
			[drag.x2, drag.y2] = [here.x, here.y];
			hideTip();
			return draw();
		}
		const t = Math.min(Math.floor(here.t), data.time.bins - 1), r = Math.max(0, Math.min(Math.floor(here.r), map.rows - 1));
		const step = data.time.stepNs;
		const object = map.rowName[r];
		showTip(event, `${seconds(t * step, step)}, for ${seconds(step, step)}\n${address(r)}, ${bytes(map.rowBytes)}\n${count(cells[r * data.time.bins + t])} misses${object ? `\nmostly ${object}` : ""}`);
	};
	canvas.onpointerup = event => {
		const from = drag?.from, to = at(event);
		const moved = drag && Math.hypot(to.x - drag.x1, to.y - drag.y1) > 6;
		drag = undefined;
		if (moved)
			look(Math.min(from.t, to.t), Math.max(from.t, to.t), Math.min(from.r, to.r), Math.max(from.r, to.r));
	};
	canvas.onpointerleave = hideTip;
	canvas.ondblclick = whole;
	canvas.addEventListener("wheel", event => {
		event.preventDefault();
		const { t, r } = at(event), zoom = event.deltaY > 0 ? 1.25 : 0.8;
		look(t - (t - view.t0) * zoom, t + (view.t1 - t) * zoom, r - (r - view.r0) * zoom, r + (view.r1 - r) * zoom);
	}, { passive: false });
	reset.onclick = whole;
	select.onchange = () => choose(Number(select.value));
	addEventListener("resize", () => map && draw());
	await choose(0);
	document.documentElement.dataset.drawn = "yes";
}

function taken() {
	const list = element(body("taken"), "dl");
	for (const [name, value] of data.taken) {
		element(list, "dt", {}, name);
		element(list, "dd", {}, value);
	}
}

header();
objects();
pages();
processes();
if (data.traps)
	traps();
sizes();
curves();
time();
taken();
heatMap();
