# Translation with your own files. Put translate.yaml and the folder corpus into one folder, and type these commands there.

# 1. A vocabulary with a token for each language, and a look at the data.
polyloom data vocab translate.yaml -o vocabulary --size 4000
polyloom data check translate.yaml

# 2. Training.
polyloom train translate.yaml -o runs/mt

# 3. Scores, by direction.
polyloom evaluate runs/mt

# 4. Translations.
echo "Where is the station?" | polyloom predict runs/mt mt/en/de
polyloom predict runs/mt mt/nl/en < corpus/en-nl.test.nl > translated.en
