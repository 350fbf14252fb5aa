// Opens pages of the site in Chromium and prints as JSON what a reader would notice.
//   node browser.mjs URL FOLDER SHOTS PAGE...        FOLDER is the site on disk; SHOTS gets screenshots
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.POLYLOOM_BROWSER + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [url, folder, shots, ...pages] = process.argv.slice(2);
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
const views = {};
for (const [view, width, colorScheme] of [["desktop", 1280, "light"], ["phone", 360, "light"], ["dark", 1280, "dark"], ["dark-phone", 360, "dark"]]) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
  const page = await context.newPage();
  const hosts = new Set(), errors = [];
  page.on("request", (request) => hosts.add(new URL(request.url()).origin));
  page.on("console", (message) => errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  views[view] = { pages: {} };
  for (const name of pages) {
    await page.goto(`${url}/${name}`);
    if (shots) await page.screenshot({ path: `${shots}/${name.replace(/\W/g, "-")}-${view}.png` });
    const seen = await page.evaluate(() => ({
      wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
      dark: getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] < 128,
    }));
    if (view !== "dark-phone") { // no rule depends on both
      await page.evaluate(axe);
      seen.violations = await page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"], preload: false }))
        .violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) =>
          `${v.id}: ${v.nodes.length} times, ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + n.failureSummary).join(" | ")}`));
    }
    views[view].pages[name] = seen;
  }
  // the first thing that a reader sees: what it is, its picture, three commands
  await page.goto(`${url}/index.html`);
  views[view].first = await page.evaluate(() => Object.fromEntries([["title", "h1"], ["picture", ".loom"], ["commands", "pre"]].map(
    ([name, selector]) => [name, document.querySelector(selector).getBoundingClientRect().bottom])));
  views[view].smallest = await page.evaluate(() => Math.min(...[...document.querySelectorAll(".loom text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a)));
  views[view].cut = await page.evaluate(() => [...document.querySelectorAll(".loom text")].filter((text) => {
    const [one, all] = [text, text.ownerSVGElement].map((node) => node.getBoundingClientRect());
    return one.left < all.left || one.right > all.right || one.bottom > all.bottom;
  }).map((text) => text.textContent));
  Object.assign(views[view], { hosts: [...hosts], errors: [...errors] });
  // the search, without a server
  await page.goto(pathToFileURL(`${folder}/search.html`).href + "?q=hypernetwork");
  await page.waitForSelector("#search-results li a", { timeout: 20000 });
  views[view].found = await page.$$eval("#search-results li a", (links) => links.map((link) => link.textContent));
  await context.close();
}
await browser.close();
console.log(JSON.stringify(views));
