# Serve a run, call it, and stop it. `polyloom demo` writes the run.

# 1. The server.
polyloom serve polyloom-demo/hyper-stack --port 8000 &
until curl --silent --fail --output /dev/null localhost:8000/readyz; do kill -0 $! || break; sleep 1; done

# 2. Two languages in one request.
curl --silent localhost:8000/v1/predict --json '{"rows": [{"condition": "pos/boza", "input": "hitpi hurhe reyoy."}, {"condition": "pos/bame", "input": "udpi ure reyoy."}]}'

# 3. The same from the command line and from Python, without torch.
echo "hitpi hurhe reyoy." | polyloom predict http://localhost:8000 pos/boza
python -c 'import polyloom as pl; print(pl.connect("http://localhost:8000").predict("hitpi hurhe reyoy.", "pos/boza"))'

# 4. Metrics, and what is served.
curl --silent localhost:8000/metrics | grep ^polyloom_requests_total
curl --silent localhost:8000/info

# 5. Stop it: it answers accepted requests first.
kill $!
wait
