// Images of the next message: dropped onto the chat or pasted into it.

import { element } from "./draw.js";

// `refusal`: resolves to why the served model takes no images; empty: it does.
export function attachImages(area, shelf, refusal) {
  const urls = [];

  function show(note = "") {
    shelf.replaceChildren(...urls.map(thumbnail), ...(note ? [element("p", "rate", note)] : []));
  }

  function thumbnail(url, index) {
    const button = element("button", "quiet", picture(url));
    button.type = "button";
    button.title = "Remove this image";
    button.addEventListener("click", () => {
      urls.splice(index, 1);
      show();
    });
    return button;
  }

  async function add(files) {
    const images = files.filter((file) => file.type.startsWith("image/"));
    if (!images.length) {
      show("Only images can be attached.");
      return;
    }
    try {
      const reason = await refusal();
      if (reason) {
        show(`This model takes no images: ${reason}.`);
        return;
      }
      urls.push(...(await Promise.all(images.map(dataUrl))));
      show();
    } catch (error) {
      show(error.message);
    }
  }

  function takeFrom(event, transfer) {
    const files = [...(transfer?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  }

  area.addEventListener("dragover", (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  });
  area.addEventListener("drop", (event) => takeFrom(event, event.dataTransfer));
  area.addEventListener("paste", (event) => {
    const isText = event.clipboardData?.types.includes("text/plain"); // with a picture of it, from some programs
    if (!isText) takeFrom(event, event.clipboardData);
  });
  return {
    taken() {
      const taken = urls.splice(0);
      show();
      return taken;
    },
  };
}

export function picture(url) {
  const image = element("img", "picture");
  image.src = url;
  image.alt = "image";
  return image;
}

export function contentOf(text, urls) {
  if (!urls.length) return text;
  const images = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...images, { type: "text", text }] : images;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read.`)));
    reader.readAsDataURL(file);
  });
}
