// Opens pages of the site in Chromium, straight from the disk, and prints as JSON what a reader would notice.
//   node browser.mjs FOLDER SHOTS PAGE...        SHOTS gets screenshots
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.POLYLOOM_BROWSER + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [folder, shots, ...pages] = process.argv.slice(2);
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
const address = (name) => pathToFileURL(`${folder}/${name}`).href;
const views = {};
for (const [view, width, colorScheme] of [["desktop", 1280, "light"], ["phone", 360, "light"], ["dark", 1280, "dark"], ["dark-phone", 360, "dark"]]) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
  const page = await context.newPage();
  const hosts = new Set(), errors = [];
  page.on("request", (request) => hosts.add(new URL(request.url()).protocol));
  page.on("console", (message) => errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  views[view] = { pages: {} };
  for (const name of pages) {
    await page.goto(address(name));
    if (shots) await page.screenshot({ path: `${shots}/${name.replace(/\W/g, "-")}-${view}.png` });
    const seen = await page.evaluate(() => ({
      wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
      dark: getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] < 128,
    }));
    await page.evaluate(axe);
    seen.violations = await page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map(
      (v) => `${v.impact} ${v.id}: ${v.nodes.length} times, ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + n.failureSummary).join(" | ")}`));
    views[view].pages[name] = seen;
  }
  // the first thing that a reader sees: what it is, its picture, three commands
  await page.goto(address("index.html"));
  views[view].first = await page.evaluate(() => Object.fromEntries([["title", "h1"], ["picture", ".loom"], ["commands", "pre"]].map(
    ([name, selector]) => [name, document.querySelector(selector).getBoundingClientRect().bottom])));
  views[view].smallest = await page.evaluate(() => Math.min(...[...document.querySelectorAll(".loom text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a)));
  // the search, without a server
  await page.goto(address("search.html") + "?q=hypernetwork");
  await page.waitForSelector("#search-results li a", { timeout: 20000 });
  views[view].found = await page.$$eval("#search-results li a", (links) => links.map((link) => link.textContent));
  Object.assign(views[view], { protocols: [...hosts], errors });
  await context.close();
}
await browser.close();
console.log(JSON.stringify(views));
