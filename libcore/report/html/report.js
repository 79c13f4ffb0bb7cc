// report.js - draws the charts of a report from the JSON block of its page, as SVG.
//
// A chart is a <figure data-chart="N">.  All charts share the range of x, the unit of x and the
// smoothing; each has its own scale of y.  Pointer: move to read, drag to zoom, double click for all.
// Keys of a chart: arrows read, + and - zoom, 0 shows all, L is the scale, T trims.
"use strict";
(function () {
    const data = JSON.parse(document.getElementById("data").textContent);
    const view = { x: "step", range: null, smooth: 0, hidden: new Set() };
    const charts = [];
    const NS = "http://www.w3.org/2000/svg";

    // --- small tools ---------------------------------------------------------------------------

    function svg(tag, attributes, parent) {
        const e = document.createElementNS(NS, tag);
        for (const k in attributes) e.setAttribute(k, attributes[k]);
        if (parent) parent.appendChild(e);
        return e;
    }
    function html(tag, properties, parent) {
        const e = Object.assign(document.createElement(tag), properties);
        if (parent) parent.appendChild(e);
        return e;
    }
    function sums(differences) {
        let sum = 0;
        return differences.map(function (d) { return sum += d; });
    }
    // The index of the entry nearest to x in an ascending list.
    function nearest(list, x) {
        let lo = 0, hi = list.length - 1;
        while (lo < hi) {
            const mid = (lo + hi) >> 1;
            if (list[mid] < x) lo = mid + 1; else hi = mid;
        }
        return lo > 0 && x - list[lo - 1] < list[lo] - x ? lo - 1 : lo;
    }

    // --- numbers -------------------------------------------------------------------------------

    function scaled(v, base, units) {
        let i = 0;
        while (i + 1 < units.length && Math.abs(v) >= 0.9995 * base) { v /= base; i++; }
        return (Math.abs(v) >= 1000 ? v.toFixed(0) : String(Number(v.toPrecision(4)))) + (units[i] ? " " + units[i] : "");
    }
    const formats = {
        number: function (v) {
            const a = Math.abs(v);
            return a !== 0 && (a < 1e-3 || a >= 1e6) ? v.toExponential(2).replace("e+", "e") : String(Number(v.toPrecision(5)));
        },
        count: function (v) { return scaled(v, 1000, ["", "k", "M", "G", "T"]); },
        bytes: function (v) { return scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]); },
        ms: function (v) { return Math.abs(v) < 1000 ? formats.number(v) + " ms" : formats.number(v / 1000) + " s"; },
        share: function (v) { return formats.number(100 * v) + " %"; },
        step: function (v) { return Math.abs(v) < 1e5 ? String(Math.round(v)) : scaled(v, 1000, ["", "k", "M", "G", "T"]); },
        seconds: function (v) {
            const unit = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(function (u) { return Math.abs(v) >= u[0]; });
            return unit ? Number((v / unit[0]).toPrecision(4)) + " " + unit[1] : formats.number(v) + " s";
        }
    };
    const xUnits = {
        step: { label: "step", format: formats.step },
        seconds: { label: "time in steps", format: formats.seconds },
        tokens: { label: "tokens", format: formats.count }
    };

    // Round numbers within [lo, hi], about n of them.
    function ticks(lo, hi, n, log) {
        const out = [];
        if (log && hi / lo >= 10) {
            const every = Math.ceil(Math.log10(hi / lo) / n);
            for (let e = Math.ceil(Math.log10(lo) - 1e-9); e <= Math.log10(hi) + 1e-9; e += every) out.push(Math.pow(10, e));
            if (out.length < 3) [2, 5].forEach(function (m) {
                for (let e = Math.floor(Math.log10(lo)); m * Math.pow(10, e) <= hi; e++)
                    if (m * Math.pow(10, e) >= lo) out.push(m * Math.pow(10, e));
            });
            return out;
        }
        const raw = (hi - lo) / n, power = Math.pow(10, Math.floor(Math.log10(raw)));
        const step = [1, 2, 5, 10].find(function (m) { return m * power >= raw; }) * power;
        for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; k++) out.push(k * step);
        return out;
    }

    // --- the data ------------------------------------------------------------------------------

    data.axes.forEach(function (a) {
        a.step = sums(a.step);
        if (a.tokens) a.tokens = sums(a.tokens);
        a.each = a.rows / Math.max(1, a.step.length);
    });
    function xOf(series) {
        const a = data.axes[series.axis];
        return a[view.x] || a.step;
    }
    // Exponential mean of those before, without the bias of the start.
    function smoothed(values, weight) {
        let sum = 0, norm = 0;
        return values.map(function (v) {
            if (v === null) return null;
            sum = weight * sum + (1 - weight) * v;
            norm = weight * norm + 1 - weight;
            return sum / norm;
        });
    }
    function shown(chart) {
        return chart.of.series.filter(function (s) { return !view.hidden.has(s.run); });
    }
    // [first, last] of x over all charts, so that their axes agree.
    function fullRange() {
        let lo = Infinity, hi = -Infinity;
        charts.forEach(function (c) {
            shown(c).forEach(function (s) {
                const x = xOf(s);
                if (x.length) { lo = Math.min(lo, x[0]); hi = Math.max(hi, x[x.length - 1]); }
            });
        });
        if (!(lo <= hi)) return [0, 1];
        return lo < hi ? [lo, hi] : [lo - 0.5, hi + 0.5];
    }

    // --- one chart -----------------------------------------------------------------------------

    // The range of y over what is visible; trimmed: without the highest and the lowest hundredth.
    function rangeOfY(chart, x0, x1) {
        const all = [];
        shown(chart).forEach(function (s) {
            const x = xOf(s);
            const lists = chart.trim || !s.low ? [s.mean] : [s.low, s.high];
            lists.forEach(function (list) {
                for (let i = 0; i < x.length; i++)
                    if (list[i] !== null && x[i] >= x0 && x[i] <= x1 && (!chart.log || list[i] > 0)) all.push(list[i]);
            });
        });
        if (!all.length) return chart.log ? [1, 10] : [0, 1];
        all.sort(function (a, b) { return a - b; });
        const cut = chart.trim ? Math.floor(all.length / 100) : 0;
        let lo = all[cut], hi = all[all.length - 1 - cut];
        if (chart.log) return lo < hi ? [lo / 1.08, hi * 1.08] : [lo / 2, hi * 2];
        const pad = lo < hi ? 0.05 * (hi - lo) : Math.abs(lo) * 0.1 || 1;
        if (lo >= 0 && lo - pad < 0) lo = pad;
        return [lo - pad, hi + pad];
    }

    function makeScale(a, b, from, to, log) {
        const f = log ? Math.log : Number, k = (to - from) / (f(b) - f(a));
        return function (v) { return from + (f(v) - f(a)) * k; };
    }

    // Points of a line within the frame, and one beyond on each side.
    function pathOf(x, y, frame) {
        let d = "", pen = "M";
        const n = x.length;
        for (let i = 0; i < n; i++) {
            if (y[i] === null || (frame.log && y[i] <= 0)) continue;
            if ((i + 1 < n && x[i + 1] < frame.x0) || (i > 0 && x[i - 1] > frame.x1)) continue;
            d += pen + frame.px(x[i]).toFixed(1) + " " + frame.py(y[i]).toFixed(1);
            pen = "L";
        }
        return d;
    }
    function bandOf(x, low, high, frame) {
        let up = "", down = "";
        for (let i = 0; i < x.length; i++) {
            if (low[i] === null || x[i] < frame.x0 || x[i] > frame.x1 || (frame.log && high[i] <= 0)) continue;
            const at = frame.px(x[i]).toFixed(1) + " ";
            up += (up ? "L" : "M") + at + frame.py(high[i]).toFixed(1);
            down = "L" + at + frame.py(frame.log ? Math.max(low[i], frame.y0) : low[i]).toFixed(1) + down;
        }
        return up ? up + down + "Z" : "";
    }

    // A run has a colour; of a run alone each series has one.  Evaluations of a run differ by their dashes too.
    function colourOf(chart, s) {
        return "s" + (data.runs.length > 1 ? s.run : chart.of.series.indexOf(s)) % 8;
    }
    function dashesOf(chart, s) {
        const evaluations = chart.of.series.filter(function (o) { return o.evaluation && o.run === s.run; });
        return ["5 3", "2 3", "9 3 2 3", "9 5"][evaluations.indexOf(s) % 4];
    }

    function drawSeries(chart, s, g, frame) {
        const x = xOf(s), line = svg("g", { "class": colourOf(chart, s) }, g);
        const smooth = chart.of.smooth && view.smooth > 0 && !s.evaluation;
        if (s.low) svg("path", { "class": "band", d: bandOf(x, s.low, s.high, frame) }, line);
        if (smooth) svg("path", { "class": "raw", d: pathOf(x, s.mean, frame) }, line);
        const path = svg("path", { "class": "line", d: pathOf(x, smooth ? smoothed(s.mean, view.smooth) : s.mean, frame) }, line);
        const inside = s.mean.filter(function (v, i) { return v !== null && x[i] >= frame.x0 && x[i] <= frame.x1; }).length;
        if (s.evaluation) path.setAttribute("stroke-dasharray", dashesOf(chart, s));
        if (!(inside < 2 || (s.evaluation && inside <= 150))) return;
        for (let i = 0; i < x.length; i++)
            if (s.mean[i] !== null && x[i] >= frame.x0 && x[i] <= frame.x1 && !(frame.log && s.mean[i] <= 0))
                svg("circle", { "class": "dot", cx: frame.px(x[i]), cy: frame.py(s.mean[i]), r: 3 }, line);
    }

    // Marks of the frame that are not too near to one before; zooming shows the others.
    const MARKS_APART = 12;
    function eachMark(steps, place, frame, put) {
        let last = -Infinity;
        steps.forEach(function (step) {
            const at = place(step), p = frame.px(at);
            if (at < frame.x0 || at > frame.x1 || Math.abs(p - last) < MARKS_APART) return;
            put(last = p);
        });
    }
    // Steps as positions in the unit of x, by the run's longest axis.
    function drawMarks(chart, g, frame) {
        const seen = new Set();
        shown(chart).forEach(function (s) {
            const run = data.runs[s.run], steps = data.axes[s.axis].step, x = xOf(s);
            if (s.evaluation || seen.has(s.run) || !steps.length) return;
            seen.add(s.run);
            const place = function (step) { return view.x === "step" ? step : x[nearest(steps, step)]; };
            eachMark(run.restarts, place, frame, function (p) {
                svg("line", { "class": "restart", x1: p, x2: p, y1: frame.top, y2: frame.bottom }, g);
            });
            if (chart.of.title !== "Loss") return;
            eachMark(run.spikes, place, frame, function (p) {
                svg("path", { "class": "spike", d: "M" + (p - 4) + " " + frame.top + "h8l-4 7z" }, g);
            });
        });
    }

    function drawAxes(chart, g, frame) {
        const format = formats[chart.of.unit], x = xUnits[view.x];
        // Bytes are round in the unit in which they are written.
        const unit = chart.of.unit === "bytes" ? Math.pow(1024, Math.floor(Math.log(Math.max(frame.y1, 1)) / Math.log(1024))) : 1;
        ticks(frame.y0 / unit, frame.y1 / unit, Math.max(2, Math.round((frame.bottom - frame.top) / 40)), frame.log).forEach(function (of) {
            const v = of * unit;
            const y = frame.py(v);
            svg("line", { "class": "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }, g);
            svg("text", { x: frame.left - 6, y: Math.max(y + 4, 10), "text-anchor": "end" }, g).textContent = format(v);
        });
        ticks(frame.x0, frame.x1, Math.max(2, Math.round((frame.right - frame.left) / 90)), false).forEach(function (v) {
            // The label of the last tick ends with the frame: half of it would be outside the picture.
            const p = frame.px(v), last = p > frame.right - 16;
            svg("text", { x: last ? frame.right + 6 : p, y: frame.bottom + 16, "text-anchor": last ? "end" : "middle" }, g).textContent = x.format(v);
        });
        svg("line", { "class": "grid", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }, g);
        svg("text", { x: frame.right, y: frame.bottom + 30, "text-anchor": "end" }, g).textContent = x.label;
    }

    function frameOf(chart) {
        const width = Math.max(240, chart.plot.clientWidth || 640), height = width < 420 ? 210 : 250;
        const full = fullRange(), range = view.range || full;
        const y = rangeOfY(chart, range[0], range[1]);
        const f = { width: width, height: height, left: 62, right: width - 8, top: 8, bottom: height - 36, log: chart.log, full: full, x0: range[0], x1: range[1], y0: y[0], y1: y[1] };
        f.px = makeScale(f.x0, f.x1, f.left, f.right, false);
        f.py = makeScale(f.y0, f.y1, f.bottom, f.top, f.log);
        f.value = function (px) { return f.x0 + (px - f.left) / (f.right - f.left) * (f.x1 - f.x0); };
        return f;
    }

    function draw(chart) {
        const f = chart.frame = frameOf(chart), root = chart.svg, clip = "clip" + chart.index;
        root.textContent = "";
        root.setAttribute("viewBox", "0 0 " + f.width + " " + f.height);
        root.style.height = f.height + "px";
        const frame = svg("clipPath", { id: clip }, svg("defs", {}, root));
        svg("rect", { x: f.left, y: f.top - 4, width: f.right - f.left, height: f.bottom - f.top + 8 }, frame);
        drawAxes(chart, svg("g", {}, root), f);
        const g = svg("g", { "clip-path": "url(#" + clip + ")" }, root);
        shown(chart).forEach(function (s) { drawSeries(chart, s, g, f); });
        drawMarks(chart, g, f);
        chart.cursorLine = svg("line", { "class": "cursor", y1: f.top, y2: f.bottom, visibility: "hidden" }, root);
        chart.selection = svg("rect", { "class": "select", y: f.top, height: f.bottom - f.top, width: 0 }, root);
        chart.switches.log.setAttribute("aria-pressed", chart.log);
        chart.switches.trim.setAttribute("aria-pressed", chart.trim);
        read(chart, chart.cursor);
    }
    function drawAll() { charts.forEach(draw); }

    // --- reading values ------------------------------------------------------------------------

    function nameOf(s) {
        return data.runs.length > 1 ? data.runs[s.run].name + (s.name === "loss" ? "" : " " + s.name) : s.name;
    }
    function describe(chart, s, i) {
        const format = formats[chart.of.unit];
        let text = s.mean[i] === null ? "not finite" : format(s.mean[i]);
        if (s.low && s.low[i] !== null && s.low[i] !== s.high[i]) text += " (" + format(s.low[i]) + " to " + format(s.high[i]) + ")";
        return text;
    }
    // The values nearest to x (null: the last ones), below the chart.
    function read(chart, x) {
        const f = chart.frame, line = chart.cursorLine;
        chart.cursor = x;
        chart.readout.textContent = "";
        line.setAttribute("visibility", x === null ? "hidden" : "visible");
        if (x !== null) {
            line.setAttribute("x1", f.px(x));
            line.setAttribute("x2", f.px(x));
            html("b", { textContent: xUnits[view.x].label + " " + xUnits[view.x].format(x) + "  " }, chart.readout);
        }
        shown(chart).forEach(function (s) {
            const xs = xOf(s);
            if (!xs.length) return;
            let i = nearest(xs, x === null ? Infinity : x);
            while (x === null && i > 0 && s.mean[i] === null) i--;
            html("span", { className: "key " + colourOf(chart, s) + (s.evaluation ? " evaluation" : "") }, chart.readout);
            html("span", { textContent: nameOf(s) + " " }, chart.readout);
            html("b", { textContent: describe(chart, s, i) + "  " }, chart.readout);
        });
    }

    function moveCursor(chart, by) {
        const s = shown(chart)[0];
        if (!s) return;
        const xs = xOf(s), at = chart.cursor === null ? (by > 0 ? -1 : xs.length) : nearest(xs, chart.cursor);
        const i = Math.min(xs.length - 1, Math.max(0, at + by));
        if (xs[i] < chart.frame.x0 || xs[i] > chart.frame.x1) {
            const half = (chart.frame.x1 - chart.frame.x0) / 2;
            setRange(xs[i] - half, xs[i] + half);
        }
        read(chart, xs[i]);
    }
    function setRange(a, b) {
        const full = fullRange(), least = (full[1] - full[0]) / 1e4;
        a = Math.max(a, full[0]);
        b = Math.min(b, full[1]);
        view.range = b - a < least || (a <= full[0] && b >= full[1]) ? null : [a, b];
        drawAll();
    }
    function zoom(chart, factor) {
        const f = chart.frame, centre = chart.cursor === null ? (f.x0 + f.x1) / 2 : chart.cursor;
        setRange(centre - (centre - f.x0) * factor, centre + (f.x1 - centre) * factor);
    }
    function showAll() { view.range = null; drawAll(); }
    function toggle(chart, what) { chart[what] = !chart[what]; draw(chart); }

    const keys = {
        ArrowRight: function (c, e) { moveCursor(c, e.shiftKey ? 10 : 1); },
        ArrowLeft: function (c, e) { moveCursor(c, e.shiftKey ? -10 : -1); },
        "+": function (c) { zoom(c, 0.5); },
        "=": function (c) { zoom(c, 0.5); },
        "-": function (c) { zoom(c, 2); },
        "0": showAll,
        Escape: function (c) { read(c, null); },
        l: function (c) { toggle(c, "log"); },
        t: function (c) { toggle(c, "trim"); }
    };

    function listen(chart) {
        const root = chart.svg;
        let from = null;
        const place = function (e) {
            const box = root.getBoundingClientRect(), f = chart.frame;
            const p = (e.clientX - box.left) * f.width / box.width;
            return Math.min(f.right, Math.max(f.left, p));
        };
        root.addEventListener("pointerdown", function (e) {
            from = place(e);
            if (e.pointerType === "mouse") root.setPointerCapture(e.pointerId);
        });
        root.addEventListener("pointermove", function (e) {
            const p = place(e);
            if (from !== null && Math.abs(p - from) > 3) {
                chart.selection.setAttribute("x", Math.min(p, from));
                chart.selection.setAttribute("width", Math.abs(p - from));
            }
            read(chart, chart.frame.value(p));
        });
        const finish = function (e) {
            const f = chart.frame, p = place(e), start = from;
            from = null;
            chart.selection.setAttribute("width", 0);
            if (start !== null && Math.abs(p - start) > 8) setRange(f.value(Math.min(p, start)), f.value(Math.max(p, start)));
        };
        root.addEventListener("pointerup", finish);
        root.addEventListener("pointercancel", function () { from = null; chart.selection.setAttribute("width", 0); });
        root.addEventListener("pointerleave", function () { if (from === null && document.activeElement !== root) read(chart, null); });
        root.addEventListener("dblclick", showAll);
        root.addEventListener("keydown", function (e) {
            const act = e.ctrlKey || e.metaKey || e.altKey ? null : keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
            if (!act) return;
            e.preventDefault();
            act(chart, e);
        });
    }

    // --- the page ------------------------------------------------------------------------------

    function makeSwitch(chart, parent, what, label, title) {
        const b = html("button", { type: "button", textContent: label, title: title }, parent);
        b.addEventListener("click", function () { toggle(chart, what); });
        return b;
    }
    function makeChart(figure) {
        const index = Number(figure.dataset.chart), of = data.charts[index];
        const chart = { of: of, index: index, log: of.log, trim: false, cursor: null, plot: figure.querySelector(".plot"), switches: {} };
        const head = html("div", { className: "head" });
        figure.insertBefore(head, figure.firstChild);
        head.appendChild(figure.querySelector("figcaption"));
        const switches = html("div", { className: "switches" }, head);
        chart.switches.log = makeSwitch(chart, switches, "log", "log", "Logarithmic scale (L)");
        chart.switches.trim = makeSwitch(chart, switches, "trim", "trim", "Scale without the highest and lowest hundredth (T)");
        chart.svg = svg("svg", { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": of.title + ". Arrow keys read values, plus and minus zoom, 0 shows all." }, chart.plot);
        chart.readout = html("div", { className: "readout" }, null);
        chart.readout.setAttribute("aria-live", "polite");
        chart.plot.after(chart.readout);
        charts.push(chart);
        listen(chart);
    }

    function makeTools() {
        const tools = document.getElementById("tools");
        const smoothing = html("label", { textContent: "smoothing " }, tools);
        const slider = html("input", { type: "range", min: 0, max: 99, value: 100 * view.smooth }, smoothing);
        slider.addEventListener("input", function () { view.smooth = slider.value / 100; drawAll(); });
        const along = html("label", { textContent: "along " }, tools), select = html("select", {}, along);
        Object.keys(xUnits).forEach(function (k) {
            if (k === "tokens" && !data.axes.some(function (a) { return a.tokens; })) return;
            html("option", { value: k, textContent: xUnits[k].label }, select);
        });
        select.addEventListener("change", function () {
            view.x = select.value;
            view.range = null;
            charts.forEach(function (c) { c.cursor = null; });
            drawAll();
        });
        html("button", { type: "button", textContent: "show all", title: "End the zoom (0)" }, tools).addEventListener("click", showAll);
        if (data.runs.length > 1) data.runs.forEach(function (run, k) {
            const label = html("label", {}, tools), box = html("input", { type: "checkbox", checked: true }, label);
            html("span", { className: "key s" + k % 8 }, label);
            label.appendChild(document.createTextNode(run.name));
            box.addEventListener("change", function () {
                if (box.checked) view.hidden.delete(k); else view.hidden.add(k);
                drawAll();
            });
        });
        tools.hidden = false;
    }

    document.querySelectorAll("figure[data-chart]").forEach(makeChart);
    // As noisy as it is, a long run reads better with some smoothing.
    view.smooth = data.axes.some(function (a) { return a.rows > 200; }) ? 0.8 : 0;
    if (charts.length) makeTools();
    drawAll();
    let width = document.body.clientWidth;
    window.addEventListener("resize", function () {
        if (document.body.clientWidth === width) return;
        width = document.body.clientWidth;
        drawAll();
    });
    window.addEventListener("beforeprint", drawAll);
    window.addEventListener("afterprint", drawAll);
})();
