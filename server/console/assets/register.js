// Sends the files of the form: a line of JSON, then their bytes, which the browser reads from disk.
// Asks first with the beginning of the model alone, so that what is no model is refused at once.
"use strict";
const form = document.getElementById("register");
const [button, problem] = [form.querySelector("button"), document.getElementById("problem")];
const uploading = document.getElementById("uploading");
let proposed = "";

const isModel = (file) => /\.onnx$/i.test(file.name);

function chosen() {
  const files = [...form.elements.files.files].sort((a, b) => (a.name < b.name ? -1 : 1));
  const [model] = files.filter(isModel).sort((a, b) => a.size - b.size);  // its data is larger
  return model ? [model, ...files.filter((file) => file !== model)] : files;
}

function send(parts, progressed) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.responseType = "json";
    request.upload.onprogress = ({loaded, total}) => progressed?.(loaded, total);
    request.onerror = () => failed(new Error("the connection was lost; try again"));
    request.onload = () => {
      if (request.status === 200) done(request.response);
      else if (request.status === 401) failed(new Error("your session has ended; sign in again"));
      else failed(new Error(request.response?.error ?? `the server answered ${request.status}`));
    };
    request.send(new Blob(parts));
  });
}

function show(loaded, total) {
  uploading.querySelector("progress").value = loaded / total;
  const mib = (bytes) => (bytes / 2 ** 20).toFixed(1);
  uploading.querySelector("span").textContent =
    loaded < total ? `${mib(loaded)} of ${mib(total)} MiB` : "sent; it is being stored";
}

async function register() {
  const files = chosen();
  const fields = Object.fromEntries([...new FormData(form)].filter(([name]) => name !== "files"));
  fields.files = files.map(({name, size}) => ({name, size}));
  const line = (more) => JSON.stringify({...fields, ...more}) + "\n";
  const checked = files.filter((file, at) => !at || isModel(file));
  const heads = checked.map((file) => file.slice(0, Number(form.dataset.headBytes)));
  await send([line({check: true}), ...heads]);
  uploading.hidden = false;
  location.assign((await send([line(), ...files], show)).page);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = button.disabled = true;
  try {
    await register();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
    uploading.hidden = true;
    button.disabled = false;
  }
});

form.elements.files.addEventListener("change", () => {
  const {name} = form.elements;
  if (name.value !== proposed) return;
  proposed = (chosen()[0]?.name ?? "").replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "").slice(0, 128);
  name.value = proposed;
});

addEventListener("pageshow", () => {  // also when the browser comes back to this page
  uploading.hidden = true;
  button.disabled = false;
});
