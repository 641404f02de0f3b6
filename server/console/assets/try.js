// Runs a model on what the form says, and shows the answer. Tensors travel as binary data of the
// Open Inference Protocol; images are decoded and scaled by the browser.
"use strict";
const tryForm = document.getElementById("try-form");
const answer = document.getElementById("answer");
const SHOWN_ROWS = 4, SHOWN_CLASSES = 5, SHOWN_VALUES = 8, LARGEST_ID = 9, MOST_ELEMENTS = 2 ** 28;

const ARRAYS = {
  FP32: Float32Array, FP64: Float64Array, INT8: Int8Array, UINT8: Uint8Array, BOOL: Uint8Array,
  INT16: Int16Array, UINT16: Uint16Array, INT32: Int32Array, UINT32: Uint32Array,
  INT64: BigInt64Array, UINT64: BigUint64Array, FP16: Uint16Array, BF16: Uint16Array,
};
const isFloat = (datatype) => /^B?FP?\d/.test(datatype);
const product = (shape) => shape.reduce((all, extent) => all * extent, 1);

// -- numbers ---------------------------------------------------------------------------------

function float32Bits(value) {
  return new Uint32Array(new Float32Array([value]).buffer)[0];
}

// The nearest FP16 or BF16, ties to even, as its bits.
function narrowed(value, datatype) {
  const bits = float32Bits(value);
  if (datatype === "BF16") {
    return Number.isNaN(value) ? 0x7fc0 : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
  }
  const sign = (bits >>> 16) & 0x8000, size = Math.abs(Math.fround(value));
  if (Number.isNaN(size)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const steps = size / 2 ** (exponent - 10);  // exact; a half and a half again is even
  const floor = Math.floor(steps), rest = steps - floor;
  const rounded = rest > 0.5 || (rest === 0.5 && floor % 2) ? floor + 1 : floor;
  return sign | (rounded + ((exponent + 14) << 10));
}

function widened(bits, datatype) {
  if (datatype === "BF16") return new Float32Array(new Uint32Array([bits << 16]).buffer)[0];
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24);
}

function packed(values, datatype) {
  if (datatype === "FP16" || datatype === "BF16") {
    return Uint16Array.from(values, (value) => narrowed(value, datatype));
  }
  const isBig = /INT64$/.test(datatype);
  const of = (value) => isFloat(datatype) ? value : Math.round(value);
  return ARRAYS[datatype].from(values, (value) => isBig ? BigInt(of(value)) : of(value));
}

function unpacked(bytes, datatype) {
  if (datatype === "BYTES") return strings(bytes);
  const values = [...new ARRAYS[datatype](bytes)];
  if (datatype === "FP16" || datatype === "BF16") {
    return values.map((bits) => widened(bits, datatype));
  }
  return values.map(Number);
}

function strings(bytes) {
  const [view, texts, decoder] = [new DataView(bytes), [], new TextDecoder()];
  for (let at = 0; at < bytes.byteLength;) {
    const size = view.getUint32(at, true);
    texts.push(decoder.decode(new Uint8Array(bytes, at + 4, size)));
    at += 4 + size;
  }
  return texts;
}

// -- inputs ----------------------------------------------------------------------------------

class Problem extends Error {}

function numbers(text, what) {
  const parts = text.split(/[\s,[\]x]+/).filter(Boolean);
  const values = parts.map(Number);
  if (values.some(Number.isNaN)) throw new Problem(`${what}: ${text} is no list of numbers`);
  return values;
}

function shapeOf(text, what) {
  const shape = numbers(text, what);
  const isRight = shape.every((extent) => Number.isInteger(extent) && extent >= 0);
  if (!isRight || product(shape) > MOST_ELEMENTS) throw new Problem(`${what}: ${text} is no shape`);
  return shape;
}

function drawn(image, width, height, fit) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.imageSmoothingQuality = "high";
  const scale = Math.max(width / image.width, height / image.height);
  const [w, h] = fit === "crop" ? [width / scale, height / scale] : [image.width, image.height];
  const [x, y] = [(image.width - w) / 2, (image.height - h) / 2];
  context.drawImage(image, x, y, w, h, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

async function ofImage(fields, shape, name) {
  const [file] = fields.image.files;
  if (!file) throw new Problem(`${name}: choose an image`);
  const isLast = fields.layout.value === "NHWC";
  const [channels, height, width] = isLast ? [shape[3], shape[1], shape[2]] : shape.slice(1);
  if (shape.length !== 4 || ![1, 3, 4].includes(channels)) {
    throw new Problem(`${name}: ${fields.layout.value} of an image has 1, 3 or 4 channels`);
  }
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Problem(`${name}: this browser cannot read ${file.name} as an image`);
  }
  const pixels = drawn(image, width, height, fields.fit.value);
  const [divisor] = numbers(fields.divisor.value, "Divide by");
  const mean = numbers(fields.mean.value, "Mean");
  const deviation = numbers(fields.deviation.value, "Deviation");
  const area = width * height, values = new Float64Array(product(shape));
  for (let at = 0; at < area * channels; at++) {
    const [pixel, channel] = isLast
      ? [Math.floor(at / channels), at % channels] : [at % area, Math.floor(at / area)];
    const source = fields.colours.value === "BGR" && channel < 3 ? 2 - channel : channel;
    const [r, g, b] = pixels.subarray(4 * pixel, 4 * pixel + 3);
    const level = channels === 1 ? 0.299 * r + 0.587 * g + 0.114 * b : pixels[4 * pixel + source];
    const of = (list) => list[channel] ?? list[0] ?? 0;
    values[at] = (level / divisor - of(mean)) / of(deviation);
  }
  for (let row = 1; row < shape[0]; row++) values.copyWithin(row * area * channels, 0, area * channels);
  return values;
}

function generated(how, datatype, count) {
  if (how !== "random") return Array(count).fill(how === "ones" ? 1 : 0);
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const largest = datatype === "BOOL" ? 1 : LARGEST_ID;
  const whole = () => Math.floor(Math.random() * (largest + 1));
  return Array.from({length: count}, isFloat(datatype) ? normal : whole);
}

// A list in JSON goes out as its text: numbers beyond 2^53 stay what they are.
function ofJson(text, shape, name) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Problem(`${name}: this is no JSON; write a list, [1, 2, 3]`);
  }
  if (!Array.isArray(given)) [given, text] = [[given], `[${text}]`];
  const count = given.flat(Infinity).length, extents = [];
  for (let part = given; Array.isArray(part); part = part[0]) extents.push(part.length);
  if (count !== product(shape) && extents.length < 2) {
    throw new Problem(`${name}: ${count} elements do not fill the shape [${shape.join(", ")}]`);
  }
  return {text, shape: count === product(shape) ? shape : extents};
}

// One input: its head as JSON text, and its bytes if they follow behind.
async function input(fieldset) {
  const fields = fieldset.elements, {name, datatype} = fieldset.dataset;
  const shape = shapeOf(fields.shape.value, `shape of ${name}`);
  if (fields.source.value === "json") {
    const {text, shape: actual} = ofJson(fields.json.value, shape, name);
    const head = JSON.stringify({name, datatype, shape: actual});
    return {head: `${head.slice(0, -1)},"data":${text}}`, bytes: []};
  }
  if (datatype === "BYTES") {
    const words = Array.from({length: product(shape)}, (_, at) => `word ${at}`);
    return {head: JSON.stringify({name, datatype, shape, data: words}), bytes: []};
  }
  const values = fields.source.value === "image"
    ? await ofImage(fields, shape, name)
    : generated(fields.fill.value, datatype, product(shape));
  const array = packed(values, datatype), parameters = {binary_data_size: array.byteLength};
  return {head: JSON.stringify({name, datatype, shape, parameters}), bytes: [array]};
}

// -- the answer ------------------------------------------------------------------------------

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(caption, columns, rows) {
  const heads = columns.map((column) => element("th", {scope: "col"}, column));
  const body = rows.map(([first, ...cells]) => element("tr", {},
    element("th", {scope: "row"}, first),
    ...cells.map((cell, at) => element("td", {"data-label": columns[at + 1]}, cell))));
  const region = {class: "scroll", tabindex: 0, role: "region", "aria-label": caption};
  const whole = element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  return element("div", {}, element("p", {}, element("strong", {}, caption)),
    element("div", region, whole));
}

const short = (value) => typeof value === "number" ? String(Number(value.toPrecision(6))) : value;

function statistics({name, datatype, shape, values}) {
  const type = `${datatype}[${shape.join(", ")}]`, some = values.slice(0, SHOWN_VALUES);
  const first = some.map(short).join(", ") + (values.length > some.length ? ", …" : "");
  if (datatype === "BYTES" || !values.length) return [name, type, "–", "–", "–", first || "none"];
  let [least, most, sum] = [Infinity, -Infinity, 0];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
    sum += value;
  }
  return [name, type, short(least), short(sum / values.length), short(most), first];
}

function isOfClasses({datatype, shape}) {
  return isFloat(datatype) && [1, 2].includes(shape.length) && shape.at(-1) > 1;
}

const total = (values) => values.reduce((sum, value) => sum + value, 0);
const areShares = (values) =>
  Math.abs(total(values) - 1) < 1e-3 && values.every((value) => value >= 0);

function best(values, labels) {
  const most = values.reduce((least, value) => Math.max(least, value), -Infinity);
  const powers = areShares(values) ? values : values.map((value) => Math.exp(value - most));
  const all = total(powers);
  const order = values.map((_, at) => at).sort((a, b) => values[b] - values[a]);
  return order.slice(0, SHOWN_CLASSES).map((at) => [
    String(at), ...(labels ? [labels[at] ?? "–"] : []), short(values[at]),
    `${(100 * powers[at] / all).toFixed(2)} %`]);
}

function topTables(output, labels) {
  const classes = output.shape.at(-1), rows = output.values.length / classes;
  return Array.from({length: Math.min(rows, SHOWN_ROWS)}, (_, row) => {
    const values = output.values.slice(row * classes, (row + 1) * classes);
    const share = areShares(values) ? "share" : "softmax";
    return table(`Largest of ${output.name}${rows > 1 ? `, row ${row}` : ""}`,
      ["class", ...(labels ? ["label"] : []), "value", share], best(values, labels));
  });
}

async function readLabels(file) {
  if (!file) return null;
  const text = await file.text();
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    return text.split(/\r?\n/);
  }
  const labels = given?.id2label ?? given;
  if (labels === null || typeof labels !== "object") throw new Problem("the labels are no list");
  return Object.assign([], labels);
}

async function outputsOf(response) {
  const body = await response.arrayBuffer();
  const size = Number(response.headers.get("inference-header-content-length") ?? body.byteLength);
  let at = size;
  return JSON.parse(new TextDecoder().decode(body.slice(0, size))).outputs.map((output) => {
    const end = at + output.parameters.binary_data_size;
    const values = unpacked(body.slice(at, end), output.datatype);
    at = end;
    return {...output, values};
  });
}

async function run() {
  const labels = await readLabels(tryForm.elements.labels.files[0]);
  const inputs = [];
  for (const fieldset of tryForm.querySelectorAll("fieldset")) inputs.push(await input(fieldset));
  const heads = inputs.map(({head}) => head).join(",");
  const head = `{"inputs":[${heads}],"parameters":{"binary_data_output":true}}`;
  const size = new TextEncoder().encode(head).length;
  const began = performance.now();
  const response = await fetch(tryForm.action, {
    method: "POST", headers: {"Inference-Header-Content-Length": size},
    body: new Blob([head, ...inputs.flatMap(({bytes}) => bytes)]),
  });
  if (response.status === 401) throw new Problem("your session has ended; sign in again");
  if (!response.ok) throw new Problem((await response.json()).error);
  const outputs = await outputsOf(response);
  const took = performance.now() - began;
  answer.replaceChildren(
    element("p", {}, `Answered in ${took.toFixed(1)} ms, from this page and back to it.`),
    ...outputs.filter(isOfClasses).flatMap((output) => topTables(output, labels)),
    table("Outputs", ["output", "type", "least", "mean", "largest", "first values"],
      outputs.map(statistics)));
}

if (tryForm) {
  const [button, problem] = [tryForm.querySelector("button"), document.getElementById("try-problem")];
  const showSources = () => tryForm.querySelectorAll("[data-source]").forEach((part) => {
    part.hidden = part.closest("fieldset").elements.source.value !== part.dataset.source;
  });
  tryForm.addEventListener("change", showSources);
  tryForm.addEventListener("submit", async (event) => {
    event.preventDefault();
    [button.disabled, problem.hidden] = [true, true];
    try {
      await run();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      answer.replaceChildren();
      if (!(error instanceof Problem)) console.error(error);
    }
    button.disabled = false;
  });
  showSources();
  button.disabled = false;
}
