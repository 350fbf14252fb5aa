# A tagger for ten languages from English labels. Copy tagger.yaml into an empty folder, and type these commands there.

# 1. The corpora: free treebanks, downloaded from their source.
polyloom data fetch ud:en_ewt ud:de_gsd ud:sv_talbanken ud:fi_tdt ud:tr_boun ud:id_gsd ud:vi_vtb ud:cy_ccg ud:mt_mudt ud:wo_wtb
polyloom data check tagger.yaml

# 2. Training.
polyloom plan tagger.yaml
polyloom train tagger.yaml -o runs/tagger

# 3. Scores.
polyloom evaluate runs/tagger --baseline

# 4. Tags.
echo "Die Katze schläft auf dem Sofa." | polyloom predict runs/tagger pos/de
echo '{"text": "Mae hi yn braf.", "condition": "pos/cy"}' | polyloom predict runs/tagger

# 5. Is it better than one adapter for all languages?
polyloom train tagger.yaml 'method={name: multilingual, adapter_size: 48, task_adapter_size: 24, train_head: false}' -o runs/one
polyloom evaluate runs/one
polyloom compare runs/tagger runs/one
polyloom report runs/tagger runs/one -o tagger.html
